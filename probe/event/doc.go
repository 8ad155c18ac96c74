// Package event implements the probe definition language of kprobe_events and the
// delivery of its events: from the text of a definition to the layout of its records,
// through per-vCPU rings to subscribers, and back to text and JSON.
package event
