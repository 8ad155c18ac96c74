package http

import (
	"bytes"
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Events of the tools below, as their headers declare them.
const (
	bioEvent    = "comm:s16 delta:u64 queued:u64 ts:u64 sector:u64 len:u32 pid:u32 flags:u32 dev:u32"
	exitEvent   = "start:u64 exit:u64 pid:u32 tid:u32 ppid:u32 sig:u32 code:i32 comm:s16"
	statesEvent = "saddr:16 daddr:16 sk:u64 ts:u64 delta:u64 pid:u32 old:i32 new:i32 family:u16 sport:u16 dport:u16 task:s16"
	spanEvent   = "saddr:16 daddr:16 ts:u64 span:u64 rx:u64 tx:u64 pid:u32 sport:u16 dport:u16 family:u16 comm:s16"
	queueEvent  = "task:s16 prev:s16 delta:u64 pid:u32 prevpid:u32"
)

const btfEvents = "tp_btf/*"

// eventTools are at tracepoints. What they say is compared with the events of the guest's own kernel for the same load.
var eventTools = []bccTool{
	{name: "biolatency", section: btfEvents, load: blockLoad(func(l *load, lines []traceLine) {
		l.want("%d requests", count(lines, "block_rq_complete"))
	}), got: func(r *toolRun) []string {
		n := 0
		_, values := r.dump("hists")
		for _, v := range values {
			n += total(v["slots"])
		}
		return []string{fmt.Sprintf("%d requests", n)}
	}},
	{name: "biosnoop", section: btfEvents, event: bioEvent, load: blockLoad(func(l *load, lines []traceLine) {
		for _, x := range lines {
			if x.event == "block_rq_issue" { // 254,0 R 4096 () 64 + 8 [bccguest]
				l.want("sector %s bytes %s", x.words[4], x.words[2])
			}
		}
	}), got: func(r *toolRun) (all []string) {
		for _, e := range r.events {
			all = append(all, fmt.Sprintf("sector %v bytes %v", e["sector"], e["len"]))
		}
		return all
	}},
	{name: "bitesize", section: btfEvents, load: blockLoad(func(l *load, lines []traceLine) {
		slots := map[string][]int{} // by the task's name
		for _, x := range lines {
			if x.event == "block_rq_issue" {
				task := strings.Trim(strings.Join(x.words[7:], " "), "[]")
				if slots[task] == nil {
					slots[task] = make([]int, 8)
				}
				slots[task][max(0, bits.Len(uint(ok(strconv.Atoi(x.words[2]))/1024))-1)]++
			}
		}
		for task, n := range slots {
			l.want("%s %v", task, n)
		}
	}), unordered: true, got: func(r *toolRun) (all []string) {
		keys, values := r.dump("hists")
		for i, v := range values {
			all = append(all, fmt.Sprintf("%v %v", keys[i]["comm"], v["slots"].([]any)[:8]))
		}
		return all
	}},
	{name: "biopattern", load: blockLoad(func(l *load, lines []traceLine) {
		last, random, sequential, size := 0, 0, 0, 0
		for _, x := range lines {
			if x.event != "block_rq_complete" { // 254,0 R () 64 + 8 [0]
				continue
			}
			at, n := ok(strconv.Atoi(x.words[3])), ok(strconv.Atoi(x.words[5]))
			switch {
			case last == 0: // the first is not counted
			case at == last:
				sequential, size = sequential+1, size+n*512
			default:
				random, size = random+1, size+n*512
			}
			last = at + n
		}
		l.want("%d random, %d sequential, %d bytes", random, sequential, size)
	}), got: func(r *toolRun) (all []string) {
		_, values := r.dump("counters")
		for _, v := range values {
			all = append(all, fmt.Sprintf("%v random, %v sequential, %v bytes", v["random"], v["sequential"], v["bytes"]))
		}
		return all
	}},
	{name: "hardirqs", section: "tp_btf/irq_handler_entry", set: map[string]string{"do_count": "true"}, unordered: true, load: func(l *load) {
		names := map[string]int{}
		for _, x := range traceEvents(readBlocks, "irq/irq_handler_entry") { // irq=24 name=virtio0
			if name := strings.TrimPrefix(x.words[1], "name="); strings.HasPrefix(name, "virtio") {
				names[name]++
			}
		}
		for name, n := range names {
			l.want("%s: %d", name, n)
		}
	}, got: func(r *toolRun) (all []string) {
		keys, values := r.dump("infos")
		for i, v := range values {
			if name := fmt.Sprint(keys[i]["name"]); strings.HasPrefix(name, "virtio") {
				all = append(all, fmt.Sprintf("%s: %v", name, v["count"]))
			}
		}
		return all
	}},
	{name: "softirqs", section: btfEvents, set: map[string]string{"targ_dist": "true"}, load: func(l *load) {
		n := 0
		for _, x := range traceEvents(talk, "irq/softirq_exit") { // vec=3 [action=NET_RX]
			if x.words[0] == "vec=3" {
				n++
			}
		}
		l.want("NET_RX %d", n)
	}, got: func(r *toolRun) []string {
		return []string{fmt.Sprintf("NET_RX %d", total(r.globalVar("hists").([]any)[3].(map[string]any)["slots"]))}
	}},
	{name: "exitsnoop", event: exitEvent, load: func(l *load) {
		for _, code := range []int{0, 3, 255} {
			pid := ok(syscall.ForkExec("/bin/sh", []string{"sh", "-c", fmt.Sprint("exit ", code)}, nil))
			var status syscall.WaitStatus
			ok(syscall.Wait4(pid, &status, 0, nil))
			l.want("sh %d of %d: %d, signal 0", pid, os.Getpid(), status.ExitStatus())
		}
		pid := ok(syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, nil))
		for string(ok(os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)))) != "sleep\n" {
			runtime.Gosched()
		}
		exitOnError(unix.Kill(pid, unix.SIGKILL))
		var status syscall.WaitStatus
		ok(syscall.Wait4(pid, &status, 0, nil))
		l.want("sleep %d of %d: 0, signal %d", pid, os.Getpid(), status.Signal())
	}, got: func(r *toolRun) (all []string) {
		for _, e := range r.events {
			all = append(all, fmt.Sprintf("%v %v of %v: %v, signal %v", e["comm"], e["pid"], e["ppid"], e["code"], e["sig"]))
		}
		return all
	}},
	{name: "syscount", set: map[string]string{"filter_pid": "PID"}, others: true, unordered: true, load: func(l *load) {
		calls := map[string]int{}
		for _, x := range traceEvents(func() {
			for i := range 37 {
				_, _, _ = unix.RawSyscall(unix.SYS_GETPGRP, 0, 0, 0) // the library takes getpgid
				if i%3 == 0 {
					ok(unix.Getsid(0))
				}
			}
		}, "raw_syscalls/sys_exit") { // NR 111 = 1
			if nr := x.words[1]; nr == strconv.Itoa(unix.SYS_GETPGRP) || nr == strconv.Itoa(unix.SYS_GETSID) {
				calls[nr]++
			}
		}
		for nr, n := range calls {
			l.want("%s: %d", nr, n)
		}
	}, got: func(r *toolRun) (all []string) {
		keys, values := r.dump("data")
		for i, v := range values {
			all = append(all, fmt.Sprintf("%v: %v", keys[i][""], v["count"]))
		}
		return all
	}},
	{name: "tcpstates", event: statesEvent, load: func(l *load) {
		names := []string{"", "TCP_ESTABLISHED", "TCP_SYN_SENT", "TCP_SYN_RECV", "TCP_FIN_WAIT1", "TCP_FIN_WAIT2", "TCP_TIME_WAIT", "TCP_CLOSE", "TCP_CLOSE_WAIT",
			"TCP_LAST_ACK", "TCP_LISTEN", "TCP_CLOSING", "TCP_NEW_SYN_RECV"} // include/net/tcp_states.h
		for _, x := range traceEvents(talk, "sock/inet_sock_set_state") {
			field := x.fields()
			l.want("%s to %s: %d to %d", field["sport"], field["dport"], slices.Index(names, field["oldstate"]), slices.Index(names, field["newstate"]))
		}
	}, got: func(r *toolRun) (all []string) {
		for _, e := range r.events {
			all = append(all, fmt.Sprintf("%v to %v: %v to %v", e["sport"], e["dport"], e["old"], e["new"]))
		}
		return all
	}},
	{name: "tcplife", event: spanEvent, load: func(l *load) {
		for _, x := range traceEvents(talk, "sock/inet_sock_set_state") {
			if field := x.fields(); field["newstate"] == "TCP_CLOSE" && field["oldstate"] != "TCP_LISTEN" {
				l.want("%s to %s", field["sport"], field["dport"])
			}
		}
	}, got: func(r *toolRun) (all []string) {
		for _, e := range r.events {
			all = append(all, fmt.Sprintf("%v to %v", e["sport"], e["dport"]))
		}
		return all
	}},
	{name: "runqlat", section: btfEvents, set: map[string]string{"targ_tgid": "PID", "targ_per_thread": "true"}, others: true, load: threadLoad,
		got: func(r *toolRun) (all []string) {
			keys, values := r.dump("hists")
			for i, v := range values {
				all = append(all, fmt.Sprintf("%v: %d", keys[i][""], total(v["slots"])))
			}
			return all
		}},
	{name: "runqslower", section: btfEvents, event: queueEvent, set: map[string]string{"targ_tgid": "PID", "min_us": "0"}, others: true, load: threadLoad,
		got: func(r *toolRun) (all []string) {
			n := map[any]int{}
			for _, e := range r.events {
				n[e["pid"]]++
			}
			for pid, times := range n {
				all = append(all, fmt.Sprintf("%v: %d", pid, times))
			}
			return all
		}},
}

// traceLine is an event of the guest's own kernel.
type traceLine struct {
	comm  string // of the task
	tid   int
	event string
	words []string // of what follows
}

// fields returns what the words NAME=VALUE say.
func (x traceLine) fields() map[string]string {
	all := map[string]string{}
	for _, w := range x.words {
		if name, value, is := strings.Cut(w, "="); is {
			all[name] = value
		}
	}
	return all
}

// tracing is where the guest's kernel has its events.
const tracing = "/sys/kernel/tracing/"

// traceEvents returns the kernel's own events, GROUP/NAME, while f runs. It opens no file between its first event and the last.
func traceEvents(f func(), events ...string) (lines []traceLine) {
	exitOnError(os.WriteFile(tracing+"trace", nil, 0))
	fd := ok(unix.Open(tracing+"set_event", unix.O_WRONLY, 0))
	for _, e := range events {
		ok(unix.Write(fd, []byte(strings.Replace(e, "/", ":", 1)+"\n")))
	}
	f()
	for _, e := range events {
		ok(unix.Write(fd, []byte("!"+strings.Replace(e, "/", ":", 1)+"\n")))
	}
	exitOnError(unix.Close(fd))
	return readTrace()
}

// traceHead is the part of a line before the event's own text: task-PID [000] d..1. 12.3: NAME:
var traceHead = regexp.MustCompile(`^ *(.+)-(\d+) +\[\d+\] \S+ +[\d.]+: (\w+): `)

// readTrace returns all events that the kernel has recorded, and forgets them.
func readTrace() (lines []traceLine) {
	for line := range bytes.Lines(ok(os.ReadFile(tracing + "trace"))) {
		if bytes.Contains(line, []byte("LOST")) {
			panic("the trace has lost events: " + string(line))
		}
		if m := traceHead.FindSubmatch(line); m != nil {
			lines = append(lines, traceLine{string(m[1]), ok(strconv.Atoi(string(m[2]))), string(m[3]), strings.Fields(string(line[len(m[0]):]))})
		}
	}
	exitOnError(os.WriteFile(tracing+"trace", nil, 0))
	return lines
}

func count(lines []traceLine, event string) (n int) {
	for _, x := range lines {
		if x.event == event {
			n++
		}
	}
	return n
}

// readBlocks reads the disk, past the page cache: each read is one request.
func readBlocks() {
	fd := ok(unix.Open("/dev/vda", unix.O_RDONLY|unix.O_DIRECT, 0))
	b := ok(unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))
	for i := range 24 {
		n := 1024 << (i % 6)
		at := int64(64<<10 + i*8192)
		if i%4 == 3 {
			at += 1 << 20
		}
		if i > 12 && i < 18 { // one after the other
			n, at = 4096, int64(2<<20+(i-12)*4096)
		}
		ok(unix.Pread(fd, b[:n], at))
	}
	exitOnError(unix.Munmap(b))
	exitOnError(unix.Close(fd))
}

// blockLoad reads the disk, and says what the kernel's own events have of that.
func blockLoad(say func(l *load, lines []traceLine)) func(l *load) {
	return func(l *load) {
		say(l, traceEvents(readBlocks, "block/block_rq_issue", "block/block_rq_complete"))
	}
}

// talk makes connections, sends and receives by each, and closes them.
func talk() {
	fd, at := listenLoopback(4)
	for i := range 5 {
		c, s, _ := connectPair(fd, at)
		for range i + 1 {
			ok(unix.Write(c, make([]byte, 100)))
			ok(unix.Read(s, make([]byte, 100)))
		}
		closeAll(c, s)
	}
	exitOnError(unix.Close(fd))
	time.Sleep(50 * time.Millisecond) // the last segments come by a softirq
}

// threadLoad has a new thread wait and work, and says how often the kernel has switched to it.
func threadLoad(l *load) {
	threads := func() map[string]bool {
		all := map[string]bool{}
		for _, t := range ok(os.ReadDir("/proc/self/task")) {
			all[t.Name()] = true
		}
		return all
	}
	tid := 0
	lines := traceEvents(func() {
		before := threads()
		for tid == 0 {
			began := make(chan int)
			go func() {
				runtime.LockOSThread() // for good: the thread ends with the function
				began <- unix.Gettid()
				for range 7 {
					time.Sleep(3 * time.Millisecond)
					exitOnError(unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil))
				}
			}()
			if n := <-began; !before[strconv.Itoa(n)] {
				tid = n
			}
		}
		for unix.Tgkill(os.Getpid(), tid, 0) == nil {
			time.Sleep(time.Millisecond)
		}
	}, "sched/sched_switch")
	n := 0
	for _, x := range lines {
		if x.fields()["next_pid"] == strconv.Itoa(tid) {
			n++
		}
	}
	l.want("%d: %d", tid, n)
}
