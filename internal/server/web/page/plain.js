// What the guest says, fit to be shown: characters that turn the direction of a line are written as a terminal has them.

const turns = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const utf8 = new TextEncoder();

export const plain = (text, slash = "\\") => text.replace(turns, (c) => [...utf8.encode(c)].map((b) => slash + "x" + b.toString(16)).join(""));

// plainJSON is plain for all strings of a text of JSON, before it is read.
export const plainJSON = (text) => plain(text, "\\\\");
