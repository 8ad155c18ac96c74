package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/command"
)

// traceHeader stands above the lines of a trace, as in Linux's
// /sys/kernel/tracing/trace (kernel/trace/trace.c, print_func_help_header_irq).
const traceHeader = `# tracer: nop
#
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
`

// What the times of lines can be.
const (
	clockBoot     = "boot"
	clockRelative = "relative"
	clockWall     = "wall"
)

// liner makes the lines of a trace.
type liner struct {
	clock string
	color bool

	epoch       time.Time // where times count from
	began, boot int64     // of the stream and of the guest, since the epoch

	stacks  map[string]int // those that were printed, by their text, with their numbers
	printed int            // stacks, in all
}

// maxStacks is how many stacks a liner remembers; then it begins anew.
const maxStacks = 10_000

func newLiner(clock string) (*liner, error) {
	switch clock {
	case clockBoot, clockRelative, clockWall:
		return &liner{clock: clock}, nil
	}
	return nil, command.Usagef("--time %q: it is %s, %s or %s", clock, clockBoot, clockRelative, clockWall)
}

// start notes what a stream says of times.
func (l *liner) start(s api.Start) { l.epoch, l.began, l.boot = s.Epoch, s.TimeNS, s.BootNS }

// wallForm is a wall time with the zone, one word and as long in each line.
const wallForm = "2006-01-02T15:04:05.000000-07:00"

// time is the time of a hit, with microseconds, which are cut off as in ftrace.
func (l *liner) time(ns int64) string {
	switch l.clock {
	case clockWall:
		return l.epoch.Add(time.Duration(ns)).Local().Format(wallForm)
	case clockRelative:
		ns -= l.began
	default:
		ns -= l.boot
	}
	sign := ""
	if ns < 0 { // it was on its way when the stream began
		sign, ns = "-", -ns
	}
	us := ns / 1000
	return fmt.Sprintf("%12s", fmt.Sprintf("%s%d.%06d", sign, us/1e6, us%1e6))
}

// line is one line, with a newline, in ftrace's columns: task, vCPU, flags, time, event,
// place and arguments.
func (l *liner) line(h api.Hit) string {
	event := h.Probe[strings.IndexByte(h.Probe, '/')+1:]
	if h.Stage == "post" {
		event += ".post"
	}
	task := api.Task{Comm: "<...>"}
	if h.Task != nil {
		task = *h.Task
	}
	irqs := '.'
	if h.IRQsOff {
		irqs = 'd'
	}
	head := fmt.Sprintf("%16s-%-7s [%03d] %c.... %s: ", command.Clean(task.Comm), strconv.Itoa(int(task.PID)), h.CPU, irqs, l.time(h.TimeNS))
	line := command.Paint(l.color, command.Dim, head) + command.Paint(l.color, command.Name, command.Clean(event)) + ": " + command.Clean(h.Text)
	if h.Stage == "return" {
		line += fmt.Sprintf(" [%.3fus]", float64(h.DurationNS)/1000)
	}
	if h.Stage == "post" || len(h.Args) == 0 {
		line += regsText(h.Regs)
	}
	if h.Late {
		line += " [LATE]"
	}
	return line + l.stack(h.Stack)
}

// stack is what a line ends with: the number of its stack, and the stack below it where it is a new one.
func (l *liner) stack(frames []api.Frame) string {
	if len(frames) == 0 {
		return "\n"
	}
	text := stackText(frames)
	n := l.stacks[text]
	if n > 0 {
		return fmt.Sprintf(" [stack %d]\n", n)
	}
	if l.stacks == nil || len(l.stacks) == maxStacks {
		l.stacks = map[string]int{}
	}
	l.printed++
	l.stacks[text] = l.printed
	return fmt.Sprintf(" [stack %d]\n", l.printed) + text
}

// stackText is a stack as ftrace prints it with its options stacktrace and sym-offset, a
// line for each frame, and the source of each.
func stackText(frames []api.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		b.WriteString(" => " + frameText(f) + "\n")
	}
	return b.String()
}

func frameText(f api.Frame) string {
	s := cmp.Or(f.Symbol, fmt.Sprintf("%#x", uint64(f.Addr)))
	if f.Source != "" {
		s += " (" + f.Source + ")"
	}
	if f.Inlined {
		s += " [inlined]"
	}
	return command.Clean(s)
}

// regOrder is the order in which registers are printed.
var regOrder = []string{"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip", "rflags"}

func regsText(regs map[string]api.Hex) string {
	var b strings.Builder
	for _, n := range regOrder {
		if v, ok := regs[n]; ok {
			fmt.Fprintf(&b, " %s=0x%x", n, uint64(v))
		}
	}
	return b.String()
}
