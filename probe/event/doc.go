// Package event is the probe definition language of kprobe_events and the way
// of its events: from the text of a definition to the layout of its records,
// through per-vCPU rings to subscribers, and back to text and JSON.
package event
