// Package timeline reads saved traces, and writes traces as text for people and
// in the formats of programs that draw them along time.
package timeline
