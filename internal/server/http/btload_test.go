package http

import (
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// btTool is one of bpftrace's tools that use tracepoints, as this test runs it.
type btTool struct {
	name      string
	before    func(l *load)                  // what the guest does before the tool starts, or nil
	load      func(l *load)                  // what it does while the tool runs
	got       func(out, pid string) []string // what the tool printed, in the same words
	prints    string                         // the tool prints this a few times more before it is stopped: what it counts
	unordered bool
	more      bool // it counts all tasks and ends after the kernel's own events, so it may count more of them
	since     int  // the first Linux that has its tracepoints: 605 is 6.5
}

var btTools = []btTool{
	{name: "biolatency", load: readsLoad(func(l *load, lines []traceLine) {
		l.want("%d requests", blockPairs(lines, []string{"block_bio_queue"}, []string{"block_rq_complete", "block_bio_complete"}))
	}, "block/block_bio_queue", "block/block_rq_complete", "block/block_bio_complete"),
		got: func(out, _ string) []string { return []string{fmt.Sprintf("%d requests", histTotal(out, "@usecs"))} }},
	{name: "biosnoop", since: 605, load: readsLoad(func(l *load, lines []traceLine) {
		for range blockPairs(lines, []string{"block_io_start"}, []string{"block_io_done"}) {
			l.want("254 0 bccguest %d", os.Getpid())
		}
	}, "block/block_io_start", "block/block_io_done"),
		got: columns("bccguest", 1, 2, 3, 4)},
	{name: "biostacks", since: 605, load: readsLoad(func(l *load, lines []traceLine) {
		l.want("%d requests", blockPairs(lines, []string{"block_io_start"}, []string{"block_rq_issue"}))
	}, "block/block_io_start", "block/block_rq_issue"),
		got: func(out, _ string) []string { return []string{fmt.Sprintf("%d requests", histTotal(out, "@usecs"))} }},
	{name: "bitesize", unordered: true, load: readsLoad(func(l *load, lines []traceLine) {
		sizes := map[string]int{}
		for _, x := range lines {
			n := uint(ok(strconv.Atoi(x.words[2]))) // 254,0 R 4096 () 64 + 8 [bccguest]
			sizes[fmt.Sprintf("%s %d", x.words[len(x.words)-1], 1<<(bits.Len(n)-1))]++
		}
		for size, n := range sizes {
			l.want("%s: %d", size, n)
		}
	}, "block/block_rq_issue"), got: func(out, _ string) (all []string) {
		for _, h := range hists(out) {
			for least, n := range h.buckets {
				all = append(all, fmt.Sprintf("%s %d: %d", strings.TrimPrefix(h.name, "@"), least, n))
			}
		}
		return all
	}},
	{name: "execsnoop", load: func(l *load) {
		var args []string
		for _, x := range traceEvents(func() {
			for i := range 5 {
				args = append(args, fmt.Sprintf("true arg%d x", i))
				run("/bin/true", strings.Fields(args[i])...)
			}
			_, err := syscall.ForkExec("/none", []string{"none"}, nil)
			args = append(args, "none")
			l.want("error %d", errno(err))
		}, "raw_syscalls/sys_enter") {
			if x.words[1] == strconv.Itoa(unix.SYS_EXECVE) {
				l.want("%d %d %s", x.tid, os.Getpid(), args[0])
				args = args[1:]
			}
		}
		l.said = l.said[1:] // of the error
	}, got: func(out, pid string) (all []string) {
		for _, w := range words(out) {
			if len(w) > 3 && w[2] == pid {
				all = append(all, strings.Join(w[1:], " "))
			}
		}
		return all
	}},
	{name: "killsnoop", load: func(l *load) {
		pid := os.Getpid()
		for _, c := range calls(func() {
			for _, to := range []int{pid, 999999} {
				for _, sig := range []syscall.Signal{unix.SIGWINCH, 0, 40, 255} {
					if to == pid && sig == 40 {
						continue
					}
					_, _, _ = unix.RawSyscall(unix.SYS_KILL, uintptr(to), uintptr(sig), 0)
					_, _, _ = unix.RawSyscall(unix.SYS_TKILL, uintptr(to), uintptr(sig), 0)
					_, _, _ = unix.RawSyscall(unix.SYS_TGKILL, uintptr(pid), uintptr(to), uintptr(sig))
				}
			}
		}, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL) {
			to, sig := c.args[0], c.args[1]
			if c.nr == unix.SYS_TGKILL {
				to, sig = c.args[1], c.args[2]
			}
			name := unix.SignalName(syscall.Signal(sig))
			switch {
			case sig == 0:
				name = "N/A"
			case name == "":
				name = strconv.FormatUint(sig, 10)
			}
			l.want("%d bccguest %s %d %d", pid, name, to, c.ret)
		}
	}, got: columns("bccguest", 1, 2, 3, 4, 5)},
	{name: "naptime", load: func(l *load) {
		var ms []int
		nap := func(nr uintptr, n int, nsec int64) {
			ms = append(ms, n)
			sleep(nr, &unix.Timespec{Sec: int64(n) / 1000, Nsec: int64(n)%1000*1e6 + nsec})
		}
		parent := os.Getppid()
		comm := strings.TrimSpace(string(ok(os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent)))))
		for i, c := range calls(func() {
			for i := range 5 {
				nap(unix.SYS_NANOSLEEP, 13+2*i, 0)
				nap(unix.SYS_CLOCK_NANOSLEEP, 14+2*i, 0)
			}
			nap(unix.SYS_NANOSLEEP, 30, 2e9) // returns an error, and is not printed
			nap(unix.SYS_NANOSLEEP, 1001, 0)
		}, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP) {
			if c.ret == 0 {
				l.want("%d %s %d bccguest %d.%03d", parent, comm, os.Getpid(), ms[i]/1000, ms[i]%1000)
			}
		}
	}, got: func(out, pid string) []string {
		return slices.DeleteFunc(columns("bccguest", 1, 2, 3, 4, 5)(out, pid), func(line string) bool {
			return regexp.MustCompile(` 0\.0(0.|10)$`).MatchString(line) // of another thread of the runtime
		})
	}},
	{name: "opensnoop", load: func(l *load) {
		var names []string
		var fds []int
		for i, c := range calls(func() {
			for i := range 6 {
				for how, flags := range []int{unix.O_RDONLY, unix.O_CREAT | unix.O_WRONLY} {
					for _, nr := range []uintptr{unix.SYS_OPEN, unix.SYS_OPENAT, unix.SYS_OPENAT2} {
						name := fmt.Sprintf("open%d-%d-%d", i, how, nr)
						if i%2 == 1 {
							name = "/tmp/load/" + name
						}
						names = append(names, name)
						if fd := openBy(nr, name, flags); fd >= 0 {
							fds = append(fds, fd)
						}
					}
				}
			}
		}, unix.SYS_OPEN, unix.SYS_OPENAT, unix.SYS_OPENAT2) {
			name := names[i]
			if !strings.HasPrefix(name, "/") {
				name = "/tmp/load/" + name
			}
			l.want("%d bccguest %d %d %s", os.Getpid(), max(c.ret, -1), max(-c.ret, 0), name)
		}
		closeAll(fds...)
	}, got: func(out, pid string) []string {
		return slices.DeleteFunc(columns("bccguest", 0, 1, 2, 3, 4)(out, pid), func(line string) bool { return !strings.Contains(line, " /tmp/load/open") })
	}},
	{name: "pidpersec", prints: "PIDs/sec:", before: startTrace("sched/sched_process_fork"), load: func(l *load) {
		for i := range 8 {
			run("/bin/true", "true", strconv.Itoa(i))
		}
		l.want("%d processes", len(endTrace(l)))
	}, got: func(out, _ string) []string {
		n := 0
		for _, m := range regexp.MustCompile(`@: (\d+)`).FindAllStringSubmatch(out, -1) {
			n += ok(strconv.Atoi(m[1]))
		}
		return []string{fmt.Sprintf("%d processes", n)}
	}},
	{name: "runqlat", more: true, before: startTrace("sched/sched_switch", "sched/sched_wakeup", "sched/sched_wakeup_new"), load: func(l *load) {
		for i := range 8 {
			run("/bin/true", "true", strconv.Itoa(i))
			exitOnError(unix.Nanosleep(&unix.Timespec{Nsec: 3e6}, nil))
		}
		n, queued := 0, map[string]bool{}
		for _, x := range endTrace(l) {
			field := x.fields()
			if x.event != "sched_switch" {
				queued[field["pid"]] = true
				continue
			}
			if field["prev_state"] == "R" {
				queued[field["prev_pid"]] = true
			}
			if next := field["next_pid"]; next != "0" && queued[next] {
				delete(queued, next)
				n++
			}
		}
		l.want("%d switches", n)
	}, got: func(out, _ string) []string {
		missed := ok(strconv.Atoi(regexp.MustCompile(`missed (\d+)`).FindStringSubmatch(out)[1])) // wakeups, and so the switches after them
		return []string{fmt.Sprintf("%d switches", histTotal(out, "@usecs")+missed)}
	}},
	{name: "setuids", load: func(l *load) {
		const none = ^uintptr(0)
		for _, c := range calls(func() {
			for _, id := range []uintptr{0, none} {
				_, _, _ = unix.RawSyscall(unix.SYS_SETUID, id, 0, 0)
				_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, id, 0, 0)
				_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, none, id, none)
			}
		}, unix.SYS_SETUID, unix.SYS_SETFSUID, unix.SYS_SETRESUID) {
			head := fmt.Sprintf("%d bccguest 0 ", os.Getpid())
			switch c.nr {
			case unix.SYS_SETUID:
				l.want(head+"setuid uid=%d (%d)", int32(c.args[0]), c.ret)
			case unix.SYS_SETFSUID:
				l.want(head+"setfsuid uid=%d (prevuid=%d)", int32(c.args[0]), c.ret)
			default:
				l.want(head+"setresuid ruid=%d euid=%d suid=%d (%d)", int32(c.args[0]), int32(c.args[1]), int32(c.args[2]), c.ret)
			}
		}
	}, got: columns("bccguest", 1, 2, 3, 4, 5, 6, 7, 8)},
	{name: "statsnoop", load: func(l *load) {
		var fs unix.Statfs_t
		var stx unix.Statx_t
		var names []string
		for i, c := range calls(func() {
			for _, name := range []string{"/tmp/load", "/none", "/dev/null", "none", "."} {
				names = append(names, name, name, name, name)
				statBy(unix.SYS_STAT, name)
				statBy(unix.SYS_LSTAT, name)
				_ = unix.Statfs(name, &fs)
				_ = unix.Statx(unix.AT_FDCWD, name, 0, unix.STATX_BASIC_STATS, &stx)
			}
		}, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_STATFS, unix.SYS_STATX) {
			l.want("%d bccguest %d %s", os.Getpid(), -c.ret, names[i])
		}
	}, got: columns("bccguest", 0, 1, 2, 3)},
	{name: "syncsnoop", load: func(l *load) {
		names := map[uint64]string{unix.SYS_SYNC: "sync", unix.SYS_SYNCFS: "syncfs", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_SYNC_FILE_RANGE: "sync_file_range", unix.SYS_MSYNC: "msync"}
		fd := file("sync")
		for _, c := range calls(func() {
			for range 3 {
				unix.Sync()
				_ = unix.Syncfs(fd)
				_ = unix.Fsync(fd)
				_ = unix.Fdatasync(fd)
				_ = unix.SyncFileRange(fd, 0, 0, 0)
				_, _, _ = unix.RawSyscall(unix.SYS_MSYNC, 0, 0, unix.MS_SYNC)
			}
		}, unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_MSYNC) {
			l.want("%d bccguest tracepoint:syscalls:sys_enter_%s", os.Getpid(), names[c.nr])
		}
		exitOnError(unix.Close(fd))
	}, got: columns("bccguest", 1, 2, 3)},
	{name: "syscount", load: func(l *load) {
		const counted = "/tmp/load/counted"
		if _, err := os.Stat(counted); err != nil {
			exitOnError(unix.Symlink("/bin/busybox", counted))
		}
		own, groups, pid := 0, 0, 0
		for _, x := range traceEvents(func() {
			run(counted, "dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=300")
			for range 2000 {
				_, _, _ = unix.RawSyscall(unix.SYS_GETPGRP, 0, 0, 0)
			}
		}, "raw_syscalls/sys_enter") {
			switch x.words[1] {
			case strconv.Itoa(unix.SYS_EXECVE):
				pid = x.tid // the task has its name from here on
				continue
			case strconv.Itoa(unix.SYS_GETPGRP):
				groups++
			}
			if x.tid == pid {
				own++
			}
		}
		l.want("@syscall[%d]: %d", unix.SYS_GETPGRP, groups)
		l.want("@process[counted]: %d", own)
	}, got: func(out, _ string) []string {
		return slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool {
			return !strings.HasPrefix(line, fmt.Sprintf("@syscall[%d]", unix.SYS_GETPGRP)) && !strings.HasPrefix(line, "@process[counted]")
		})
	}},
	{name: "tcpdrop", load: dropLoad, got: func(out, _ string) (all []string) {
		for _, w := range words(out) {
			if len(w) == 6 && strings.HasPrefix(w[4], dropTo) {
				all = append(all, w[3]+" "+w[4]+" "+w[5])
			}
		}
		return all
	}},
	{name: "writeback", before: startTrace("writeback/writeback_start", "writeback/writeback_written"), load: func(l *load) {
		fd := ok(unix.Open("/dev/vda", unix.O_RDWR, 0))
		for i := range 4 {
			ok(unix.Pwrite(fd, make([]byte, 4096*(i+1)), int64(i)<<16))
			unix.Sync() // some of it is done later
		}
		started := map[string]bool{}
		for _, x := range endTrace(l) { // bdi 254:0: sb_dev 0:0 nr_pages=...
			if x.event == "writeback_start" {
				started[x.words[3]] = true
			} else if started[x.words[3]] {
				delete(started, x.words[3])
				field := x.fields()
				l.want("%s %d %s", strings.TrimSuffix(x.words[1], ":"), ok(strconv.ParseInt(field["nr_pages"], 10, 64))&0xffff, field["reason"])
			}
		}
		exitOnError(unix.Close(fd))
	}, got: func(out, _ string) (all []string) {
		for _, w := range words(out) {
			if len(w) == 5 && strings.Contains(w[1], ":") {
				all = append(all, strings.Join(w[1:4], " "))
			}
		}
		return all
	}},
}

// run runs a program to its end.
func run(path string, args ...string) {
	pid := ok(syscall.ForkExec(path, args, nil))
	var status syscall.WaitStatus
	ok(syscall.Wait4(pid, &status, 0, nil))
}

// readsLoad reads the disk, and says what the kernel's own events have of that.
func readsLoad(say func(l *load, lines []traceLine), events ...string) func(l *load) {
	return func(l *load) { say(l, traceEvents(readBlocks, events...)) }
}

// blockPairs returns how many requests were started and ended: by their sectors, as the tools do it.
func blockPairs(lines []traceLine, starts, ends []string) (n int) {
	started := map[string]bool{}
	for _, x := range lines {
		sector := x.words[slices.Index(x.words, "+")-1]
		if slices.Contains(starts, x.event) {
			started[sector] = true
		} else if slices.Contains(ends, x.event) && started[sector] {
			delete(started, sector)
			n++
		}
	}
	return n
}

// systemCall is a system call of the load's own thread, as the kernel's own events have it.
type systemCall struct {
	nr   uint64
	args [6]uint64
	ret  int64
}

// calls returns the calls of the numbers nrs while f runs.
func calls(f func(), nrs ...uint64) (all []systemCall) {
	for _, x := range traceEvents(f, "raw_syscalls/sys_enter", "raw_syscalls/sys_exit") { // NR 62 (3e8, 1c, 0, 0, 0, 0) or NR 62 = 0
		nr, err := strconv.ParseUint(x.words[1], 10, 64)
		if x.tid != os.Getpid() || err != nil || !slices.Contains(nrs, nr) { // -1 where a signal's handler returns
			continue
		}
		if x.event == "sys_enter" {
			c := systemCall{nr: nr}
			for i, w := range x.words[2:] {
				c.args[i] = ok(strconv.ParseUint(strings.Trim(w, "(,)"), 16, 64))
			}
			all = append(all, c)
		} else {
			all[len(all)-1].ret = ok(strconv.ParseInt(x.words[3], 10, 64))
		}
	}
	return all
}

// Where the packets of dropLoad go.
const dropTo = "10.99.0.2:7777"

// dropLoad sends packets to a neighbor that never answers, and has room for one of them.
func dropLoad(l *load) {
	shell := func(command string) { run("/bin/sh", "sh", "-c", command) }
	shell("insmod /lib/modules/dummy.ko numdummies=0; ip link add gp0 type dummy; ip link set gp0 arp on; ip addr add 10.99.0.1/24 dev gp0; ip link set gp0 up; echo 1 >/proc/sys/net/ipv4/neigh/gp0/unres_qlen_bytes")
	from := ""
	for _, x := range traceEvents(func() {
		fd := ok(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
		exitOnError(unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 99, 0, 2}, Port: 7777}))
		from = fmt.Sprintf("10.99.0.1:%d", port(fd))
		for i := range 9 {
			ok(unix.Write(fd, make([]byte, i+1)))
		}
		shell("ip link del gp0")
		exitOnError(unix.Close(fd))
	}, "skb/kfree_skb") { // skbaddr=... protocol=2048 location=... reason: NEIGH_QUEUEFULL
		if reason := x.words[len(x.words)-1]; x.fields()["protocol"] == "2048" && reason != "NOT_SPECIFIED" {
			l.want("%s %s ESTABLISHED", from, dropTo)
		}
	}
	shell("rmmod dummy")
}

// words returns the words of each line.
func words(out string) (all [][]string) {
	for line := range strings.Lines(out) {
		all = append(all, strings.Fields(line))
	}
	return all
}

// columns returns what makes lines of these columns of those that have a word, and what follows the last one if the columns end there.
func columns(with string, which ...int) func(out, pid string) []string {
	return func(out, _ string) (all []string) {
		for _, w := range words(out) {
			if !slices.Contains(w, with) {
				continue
			}
			var line []string
			for _, i := range which {
				if i < len(w) {
					line = append(line, w[i])
				}
			}
			all = append(all, strings.Join(line, " "))
		}
		return all
	}
}

// histogram is one that a script printed.
type histogram struct {
	name    string      // of its map, and the key
	buckets map[int]int // hits by the least value, where there are any
}

// histLine is a line of a histogram, as [4K, 8K)  3 |@@@  |.
var histLine = regexp.MustCompile(`^[\[(](-?\d+)([KMGT]?)[],)][^|]* (\d+) \|`)

// hists reads the histograms of a script's output.
func hists(out string) (all []histogram) {
	name := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := histLine.FindStringSubmatch(line); m != nil {
			unit := 0
			if m[2] != "" {
				unit = 1 + strings.Index("KMGT", m[2])
			}
			if n := ok(strconv.Atoi(m[3])); n > 0 {
				if name != "" {
					all = append(all, histogram{name, map[int]int{}})
					name = ""
				}
				all[len(all)-1].buckets[ok(strconv.Atoi(m[1]))<<(10*unit)] = n
			}
		} else if strings.HasPrefix(line, "@") {
			name = strings.TrimSuffix(line, ":")
		}
	}
	return all
}

// histTotal returns the sum of all values of a map's histograms.
func histTotal(out, name string) (n int) {
	for _, h := range hists(out) {
		if strings.HasPrefix(h.name, name) {
			for _, of := range h.buckets {
				n += of
			}
		}
	}
	return n
}
