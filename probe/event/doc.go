// Package event is the probe definition language of kprobe_events and the way
// of its events: from the text of a definition to the bytes captured at a hit,
// through per-vCPU rings to subscribers, and back to text and JSON.
package event
