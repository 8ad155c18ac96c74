package http

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Some tools count what all tasks do. What the guest's own kernel counts for the same time has to begin and to end at the same event: it
// begins where the kernel registers a function at the tracepoint, which a kprobe of its own records among the events, and it ends where
// the guest's only vCPU runs nothing but the load's thread, until the tool has been stopped.

// startTrace has the kernel record events, GROUP/NAME, and who registers at their tracepoints.
func startTrace(events ...string) func(l *load) {
	return func(*load) {
		exitOnError(os.WriteFile("/proc/sys/kernel/sched_rt_runtime_us", []byte("-1"), 0))
		setWatchdog("0")
		exitOnError(os.WriteFile(tracing+"trace", nil, 0))
		exitOnError(os.WriteFile(tracing+"kprobe_events", []byte("p:own/registers tracepoint_probe_register at=%di:x64 data=%dx:x64\nr:own/registered tracepoint_probe_register ret=$retval\n"), 0))
		exitOnError(os.WriteFile(tracing+"events/own/enable", []byte("1"), 0))
		for _, e := range events {
			exitOnError(os.WriteFile(tracing+"events/"+e+"/enable", []byte("1"), 0))
		}
		exitOnError(os.WriteFile(tracing+"trace", nil, 0))
	}
}

// endTrace waits until the tool has been stopped, and returns the events that it has seen: those since its functions were registered.
func endTrace(l *load) (seen []traceLine) {
	// From here on nothing is allocated: the runtime's garbage collection would have this thread wait for others.
	on, off := ok(unix.Open(tracing+"tracing_on", unix.O_WRONLY, 0)), []byte("0")
	serial, buffer := ok(unix.Open("/proc/tty/driver/serial", unix.O_RDONLY, 0)), make([]byte, 4096)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 99}
	exitOnError(unix.SchedSetAttr(0, &attr, 0))
	l.say("QUIET")
	ok(unix.Write(on, off))
	for count := countReceived(serial, buffer); countReceived(serial, buffer) == count; {
	}
	attr.Policy, attr.Priority = unix.SCHED_NORMAL, 0
	exitOnError(unix.SchedSetAttr(0, &attr, 0))
	ok(readRequest())
	closeAll(on, serial)
	exitOnError(os.WriteFile(tracing+"set_event", []byte("\n"), 0))
	exitOnError(os.WriteFile(tracing+"events/enable", []byte("0"), 0))
	lines := readTrace() // the end of a kprobe takes all events with it
	exitOnError(os.WriteFile(tracing+"kprobe_events", []byte("\n"), 0))
	exitOnError(os.WriteFile(tracing+"tracing_on", []byte("1"), 0))
	setWatchdog("1")

	names := map[string]string{} // of tracepoints, by address
	for line := range strings.Lines(string(ok(os.ReadFile("/proc/kallsyms")))) {
		if w := strings.Fields(line); strings.HasPrefix(w[2], "__tracepoint_") {
			names["0x"+strings.TrimLeft(w[0], "0")] = strings.TrimPrefix(w[2], "__tracepoint_")
		}
	}
	registered, current := map[string]bool{}, ""
	for _, x := range lines {
		switch field := x.fields(); {
		case x.event == "registers" && strings.HasPrefix(field["data"], "0x67707470"):
			current = names[field["at"]]
		case x.event == "registered" && current != "":
			registered[current] = true
			current = ""
		case current == x.event:
			panic(fmt.Sprintf("%s while it was registered", x.event))
		case registered[x.event]:
			seen = append(seen, x)
		}
	}
	if len(registered) == 0 {
		panic("the tool has registered nothing")
	}
	return seen
}

// setWatchdog switches the watchdog of a kernel that has one: its thread would run on a vCPU that nothing else is to run on.
func setWatchdog(on string) {
	if err := os.WriteFile("/proc/sys/kernel/watchdog", []byte(on), 0); !os.IsNotExist(err) {
		exitOnError(err)
	}
}

// countReceived returns how many bytes have come at the serial port, as the kernel says it.
func countReceived(serial int, buffer []byte) (n int) {
	have := ok(unix.Pread(serial, buffer, 0))
	_, digits, is := bytes.Cut(buffer[:have], rxField)
	if !is {
		panic("the kernel does not say what has come at its serial port")
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

var rxField = []byte(" rx:")
