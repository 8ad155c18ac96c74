package event

import (
	"fmt"
	"strconv"

	"github.com/guestprobe/guestprobe/guest"
)

// TraceHeader is the comment that stands above trace lines in ftrace's own
// output; its columns are those of AppendLine.
const TraceHeader = `#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
`

// AppendArgs appends the place and the arguments as ftrace prints them:
//
//	(vfs_read+0x0/0x370) fd=3 buf=0xffff888003a5c000
//	(ksys_read+0x6f/0xf0 <- vfs_read) arg1=16
func (f *Layout) AppendArgs(b []byte, r *Record) []byte {
	b = append(b, '(')
	if r.Stage == StageReturn {
		b = f.appendPlace(b, r.Ret)
		b = append(b, " <- "...)
		if s, ok := f.symbols.Find(r.Addr); ok {
			b = append(b, s.Name...)
		} else {
			b = appendAddr(b, r.Addr)
		}
	} else {
		b = f.appendPlace(b, r.Addr)
	}
	b = append(b, ')')
	for _, v := range r.Values {
		b = append(append(append(b, ' '), v.Name...), '=')
		b = v.AppendText(b)
	}
	return b
}

func (f *Layout) appendPlace(b []byte, addr guest.GVA) []byte {
	if s, ok := f.symbols.Find(addr); ok {
		return appendSymbolOffset(b, s, addr)
	}
	return appendAddr(b, addr)
}

func appendAddr(b []byte, addr guest.GVA) []byte { return fmt.Appendf(b, "0x%08x", uint64(addr)) }

// AppendLine appends a whole trace line in ftrace's columns, with a newline:
//
//	<...>-0       [000] d....     2.157317: myread: (vfs_read+0x0/0x370) fd=3
//
// Time is in nanoseconds and printed in seconds with microseconds, as ftrace
// does. Of the five flags only the first is known, d for interrupts off;
// without a profile the task is <...>-0.
func (f *Layout) AppendLine(b []byte, cpu int, time int64, r *Record) []byte {
	comm := "<...>"
	if r.HasTask {
		comm = string(appendPrintable(nil, r.Comm))
	}
	irqs := '.'
	if r.IRQsOff {
		irqs = 'd'
	}
	us := time / 1000
	b = fmt.Appendf(b, "%16s-%-7s [%03d] %c.... %5d.%06d: %s: ",
		comm, strconv.Itoa(int(r.PID)), cpu, irqs, us/1e6, us%1e6, f.def.Event)
	b = f.AppendArgs(b, r)
	return append(b, '\n')
}
