// The API: requests, and streams over sockets.
import {plainJSON} from "./plain.js";

export const key = {
  get: () => localStorage.getItem("guestprobe-key") ?? "",
  set: (k) => localStorage.setItem("guestprobe-key", k),
};

// APIError is what the daemon has refused, with the fields of its answer.
export class APIError extends Error {
  constructor(status, e) {
    super(e.message);
    this.status = status;
    this.fields = e;
  }
}

// refusal is the error of an answer's body.
export function refusal(status, text) {
  try {
    return new APIError(status, JSON.parse(text).error);
  } catch {
    return new APIError(status, {message: text || "no answer", code: String(status)});
  }
}

// open changes the token in the address into a cookie and a key.
export async function open() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) {
    return;
  }
  history.replaceState(null, "", "/");
  const r = await fetch("/session", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({token})});
  const text = await r.text();
  if (!r.ok) {
    throw refusal(r.status, text);
  }
  key.set(JSON.parse(text).key);
}

// call sends a request and returns its answer.
export async function call(method, path, body, signal) {
  const headers = {"Guestprobe-Key": key.get()};
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
  }
  let r, text;
  try {
    r = await fetch(path, {method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body)});
    text = plainJSON(await r.text());
  } catch (e) {
    throw e.name === "AbortError" ? e : new APIError(0, {message: "the daemon does not answer", code: "unreachable"});
  }
  if (!r.ok) {
    throw refusal(r.status, text);
  }
  return text === "" ? null : JSON.parse(text);
}

// judge asks what is wrong with a definition or a script that is being typed, and throws that.
export async function judge(what) {
  const r = await call("POST", "/v1/check", {...what, inAnswer: true});
  if (r.error) {
    throw new APIError(200, r.error);
  }
  return r;
}

// socket asks for a stream. on.text gets its text in whole lines, on.end an error, or null once all of it was there. It
// returns what closes it.
export function socket(ask, on) {
  const ws = new WebSocket("/socket");
  ws.binaryType = "arraybuffer";
  const decoder = new TextDecoder();
  let rest = "", status = 0, whole = false, ended = false;
  const end = (err) => {
    if (!ended) {
      ended = true;
      on.end(err);
    }
  };
  ws.onopen = () => ws.send(JSON.stringify(ask));
  ws.onmessage = (m) => {
    if (typeof m.data === "string") {
      status ||= JSON.parse(m.data).status ?? 0;
      whole = m.data === "{}";
      return;
    }
    const text = rest + plainJSON(decoder.decode(m.data, {stream: true}));
    if (status >= 400) {
      rest = text;
    } else {
      const cut = text.lastIndexOf("\n") + 1;
      rest = text.slice(cut);
      if (cut > 0 && !ended) {
        on.text(text.slice(0, cut));
      }
    }
    if (ws.readyState === WebSocket.OPEN) {
      ws.send(String(m.data.byteLength));
    }
  };
  ws.onclose = () => {
    if (status >= 400) {
      end(refusal(status, rest));
    } else {
      end(whole ? null : new APIError(0, {message: "the stream was cut off", code: "unreachable"}));
    }
  };
  return () => {
    ended = true;
    ws.close();
  };
}

// stream is socket for records: on[TYPE] gets the data of one, on.end an error or null.
export function stream(method, path, body, on) {
  return socket({key: key.get(), method, path, body}, {
    text: (text) => {
      for (const line of text.split("\n")) {
        if (line !== "") {
          const r = JSON.parse(line);
          on["on" + r.type]?.(r.data);
        }
      }
    },
    end: on.end,
  });
}
