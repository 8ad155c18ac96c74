// Package http is guestprobed: it boots one guest and serves its probes,
// state and events as HTTP and JSON on a unix socket.
//
// The server is made of parts. Apart from functions that it is given, each
// part reaches only parts above it in this list:
//
//	inspector    reads the guest: symbols, code, memory, stacks, variables, tasks
//	runControl   pauses, resumes, steps and calls; a debugger's hold; boots
//	streams      open streams of records, and their bounds
//	state        the file of --state
//	probeHost    probes, programs and maps for clients
//	scriptHost   scripts, with clients and without
//	eventHost    streams of events, counts, profiles and the console
//	restorer     attachments in a form that outlives the daemon, and back
//	saver        snapshots, and resets to them
//	scrapes      metrics
//	page         the page in the browser
//	server       routes, start and end, reloads, the fleet, debuggers, the jail
package http
