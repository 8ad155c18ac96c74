package http

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// bccTool is a tool of bcc's libbpf-tools, as this test runs it.
type bccTool struct {
	name        string // its file, and behind that a word where it is here several times
	section     string
	at          string
	set         map[string]string // PID stands for the process that does the load
	skipMissing bool
	event       string                          // the structure of its records, where the object does not declare it: see decodeEvent
	unordered   bool                            // what is seen first is not said first
	others      bool                            // it also says things of which the load knows nothing: lines count up to a colon
	load        func(l *load)                   // what the guest does; it runs there
	got         func(r *toolRun) (all []string) // what the tool says of it, in the same words
}

const kprobes, fentries = "kprobe/*,kretprobe/*", "fentry/*,fexit/*"

// What the tools for file systems are put at, as they themselves do for ext4.
const atExt4 = "dummy_file_read=ext4_file_read_iter,dummy_file_write=ext4_file_write_iter,dummy_file_open=ext4_file_open,dummy_file_sync=ext4_sync_file,dummy_getattr=ext4_file_getattr"

// winch is a signal that does nothing to a process which has not asked for it.
const winch = unix.SIGWINCH

var bccTools = slices.Concat(systemTools, netTools, eventTools)

// Events of the tools below, as their headers declare them.
const (
	lifeEvent   = "file:s32 task:s16 delta:u64 tgid:u32"
	slowerEvent = "delta:u64 end:u64 offset:u64 size:u64 pid:u32 op:u32 file:s32 task:s16"
	openEvent   = "ts:u64 pid:u32 uid:u32 ret:i32 flags:u32 callers:16 comm:s16 fname:s255"
	statEvent   = "ts:u64 pid:u32 ret:i32 comm:s16 pathname:s255"
	execEvent   = "pid:u32 ppid:u32 uid:u32 ret:i32 count:u32 size:u32 comm:s16 args:*"
	mountEvent  = "delta:u64 flags:u64 pid:u32 tid:u32 ns:u32 ret:i32 comm:s16 fs:s8 src:s4096 dest:s4096 data:s512 op:u32"
	oomEvent    = "fpid:u32 tpid:u32 pages:u64 fcomm:s16 tcomm:s16"
)

var systemTools = []bccTool{
	{name: "vfsstat kprobe", section: kprobes, load: vfsLoad, got: vfsSeen},
	{name: "vfsstat fentry", section: fentries, load: vfsLoad, got: vfsSeen},
	{name: "funclatency", at: "dummy_kprobe=do_mkdirat,dummy_kretprobe=do_mkdirat", set: map[string]string{"targ_tgid": "PID"},
		load: func(l *load) {
			for i := range 23 {
				exitOnError(unix.Mkdir(fmt.Sprint("latency", i), 0o755))
			}
			l.want("23 calls")
		},
		got: func(r *toolRun) []string { return []string{fmt.Sprintf("%d calls", total(r.globalVar("hist")))} }},
	{name: "fsdist kprobe", section: kprobes, at: atExt4, set: map[string]string{"target_pid": "PID"}, load: fsdistLoad, got: fsdistSeen},
	{name: "fsdist fentry", section: fentries, at: atExt4, set: map[string]string{"target_pid": "PID"}, load: fsdistLoad, got: fsdistSeen},
	{name: "fsslower kprobe", event: slowerEvent, section: kprobes, at: atExt4, set: map[string]string{"target_pid": "PID"}, load: fsslowerLoad, got: fsslowerSeen},
	{name: "fsslower fentry", event: slowerEvent, section: fentries, at: atExt4, set: map[string]string{"target_pid": "PID"}, load: fsslowerLoad, got: fsslowerSeen},
	{name: "filelife", event: lifeEvent, set: map[string]string{"targ_tgid": "PID"},
		load: func(l *load) {
			for i := range 9 {
				name := fmt.Sprint("life", i)
				exitOnError(unix.Close(file(name)))
				exitOnError(unix.Unlink(name))
				l.want("%s %d", name, os.Getpid())
			}
		},
		got: func(r *toolRun) []string { return r.lines("file", "tgid") }},
	{name: "filetop", set: map[string]string{"target_pid": "PID"}, unordered: true,
		load: func(l *load) {
			for i := range 4 {
				name := fmt.Sprint("top", i)
				fd := file(name)
				for range i + 1 {
					ok(unix.Write(fd, make([]byte, 100*(i+1))))
				}
				ok(unix.Seek(fd, 0, 0))
				read := 0
				for read < 100 {
					read += ok(unix.Read(fd, make([]byte, 20)))
				}
				l.want("%s reads 5 %d writes %d %d", name, read, i+1, 100*(i+1)*(i+1))
				exitOnError(unix.Close(fd))
			}
		},
		got: func(r *toolRun) (all []string) {
			_, values := r.dump("entries")
			for _, v := range values {
				all = append(all, fmt.Sprintf("%v reads %v %v writes %v %v", v["filename"], v["reads"], v["read_bytes"], v["writes"], v["write_bytes"]))
			}
			return filterLoad(all, "top")
		}},
	{name: "opensnoop", event: openEvent, set: map[string]string{"targ_tgid": "PID"},
		load: func(l *load) {
			for i := range 6 {
				name := fmt.Sprint("open", i)
				fd, err := unix.Open(name, unix.O_RDONLY, 0) // none is there
				l.want("%s %d %d", name, unix.O_RDONLY, errno(err))
				fd, err = unix.Openat(unix.AT_FDCWD, name, unix.O_CREAT|unix.O_WRONLY, 0o600)
				exitOnError(err)
				l.want("%s %d %d", name, unix.O_CREAT|unix.O_WRONLY, fd)
				exitOnError(unix.Close(fd))
			}
		},
		got: func(r *toolRun) []string { return filterLoad(r.lines("fname", "flags", "ret"), "open") }},
	{name: "statsnoop", event: statEvent, set: map[string]string{"target_pid": "PID"},
		load: func(l *load) {
			var st unix.Stat_t
			var fs unix.Statfs_t
			var stx unix.Statx_t
			for i, name := range []string{"/tmp/load", "/none", "/dev/null", "/tmp/load/none"} {
				for _, err := range []error{
					unix.Stat(name, &st), unix.Lstat(name, &st), unix.Fstatat(unix.AT_FDCWD, name, &st, unix.AT_SYMLINK_NOFOLLOW),
					unix.Statfs(name, &fs), unix.Statx(unix.AT_FDCWD, name, 0, unix.STATX_BASIC_STATS, &stx),
				} {
					l.want("%s %d", name, errno(err))
				}
				_ = i
			}
		},
		got: func(r *toolRun) []string { return r.lines("pathname", "ret") }},
	{name: "execsnoop", event: execEvent, set: map[string]string{"ignore_failed": "false"},
		load: func(l *load) {
			for i := range 5 {
				arg := fmt.Sprint("arg", i)
				pid := ok(syscall.ForkExec("/bin/true", []string{"true", arg, "x"}, nil))
				var status syscall.WaitStatus
				ok(syscall.Wait4(pid, &status, 0, nil))
				l.want("true %d by %d, uid 0: 3 [/bin/true %s x] %d", pid, os.Getpid(), arg, 0)
			}
			_, err := syscall.ForkExec("/none", []string{"none"}, nil)
			l.want("bccguest by %d, uid 0: 1 [/none] %d", os.Getpid(), errno(err))
		},
		got: func(r *toolRun) (all []string) {
			for _, e := range r.events {
				args := strings.Split(strings.TrimSuffix(string(e["args"].([]byte)), "\x00"), "\x00")
				pid := fmt.Sprint(" ", e["pid"])
				if e["ret"].(int64) < 0 {
					pid = "" // the caller does not know the process that it has begun
				}
				all = append(all, fmt.Sprintf("%v%s by %v, uid %v: %v %v %v", e["comm"], pid, e["ppid"], e["uid"], e["count"], args, e["ret"]))
			}
			return all
		}},
	{name: "mountsnoop", event: mountEvent, set: map[string]string{"target_pid": "PID"},
		load: func(l *load) {
			for i := range 3 {
				dir := fmt.Sprint("/tmp/load/mount", i)
				exitOnError(unix.Mkdir(dir, 0o755))
				exitOnError(unix.Mount(fmt.Sprint("src", i), dir, "tmpfs", unix.MS_NOSUID, "size=64k"))
				l.want("0 src%d %s tmpfs size=64k %d 0", i, dir, unix.MS_NOSUID)
				l.want("0 none %s nothing  0 %d", dir, errno(unix.Mount("none", dir, "nothing", 0, "")))
				exitOnError(unix.Unmount(dir, unix.MNT_DETACH))
				l.want("1  %s   %d 0", dir, unix.MNT_DETACH)
			}
		},
		got: func(r *toolRun) []string { return r.lines("op", "src", "dest", "fs", "data", "flags", "ret") }},
	{name: "sigsnoop", section: "tracepoint/syscalls/*", set: map[string]string{"filtered_pid": "PID", "target_signal": strconv.Itoa(int(winch))},
		load: func(l *load) {
			pid := os.Getpid()
			for _, to := range []int{pid, 999999} {
				l.want("%d %d %d", to, winch, errno(unix.Kill(to, winch)))
				l.want("%d %d %d", to, winch, errno(unix.Tgkill(to, to, winch)))
				_, _, err := unix.RawSyscall(unix.SYS_TKILL, uintptr(to), uintptr(winch), 0)
				l.want("%d %d %d", to, winch, -int(err))
			}
		},
		got: func(r *toolRun) []string { return r.lines("tpid", "sig", "ret") }},
	{name: "capable", set: map[string]string{"targ_pid": "PID"},
		load: func(l *load) {
			for range 6 {
				exitOnError(unix.Chroot("/"))
				l.want("%d 0 0", unix.CAP_SYS_CHROOT)
			}
		},
		got: func(r *toolRun) []string {
			return r.filter("cap", strconv.Itoa(unix.CAP_SYS_CHROOT)).lines("cap", "uid", "ret")
		}},
	{name: "slabratetop", set: map[string]string{"target_pid": "PID"},
		load: func(l *load) {
			for range 11 {
				exitOnError(unix.Close(ok(unix.Open("/dev/null", 0, 0))))
			}
			l.want("filp 11")
		},
		got: func(r *toolRun) (all []string) {
			_, values := r.dump("slab_entries")
			for _, v := range values {
				if v["name"] == "filp" {
					all = append(all, fmt.Sprintf("filp %v", v["count"]))
				}
			}
			return all
		}},
	{name: "cachestat", skipMissing: true,
		load: func(l *load) {
			n := countCalls(func() {
				fd := file("/mnt/cache")
				ok(unix.Write(fd, make([]byte, 64<<10)))
				exitOnError(unix.Fsync(fd))
				exitOnError(unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
				for i := range 16 {
					ok(unix.Pread(fd, make([]byte, 100), int64(i)<<12))
				}
				exitOnError(unix.Close(fd))
				unix.Sync()
			}, "add_to_page_cache_lru", "mark_page_accessed", "mark_buffer_dirty")
			misses, accessed, dirty := ok(strconv.Atoi(n[0])), ok(strconv.Atoi(n[1])), ok(strconv.Atoi(n[2]))
			l.want("misses %d total %d mbd %d", misses, accessed-dirty, dirty)
		},
		got: func(r *toolRun) []string {
			return []string{fmt.Sprintf("misses %v total %v mbd %v", r.globalVar("misses"), r.globalVar("total"), r.globalVar("mbd"))}
		}},
	{name: "oomkill", event: oomEvent,
		load: func(l *load) {
			pid := ok(syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, nil))
			// Until the process has the program's memory it has ours, which goes with it.
			for string(ok(os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)))) != "sleep\n" {
				runtime.Gosched()
			}
			// The kernel takes the process with the highest score, and never one of -1000.
			exitOnError(os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0))
			exitOnError(os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0))
			exitOnError(os.WriteFile("/proc/sysrq-trigger", []byte("f"), 0))
			var status syscall.WaitStatus
			ok(syscall.Wait4(pid, &status, 0, nil))
			l.want("%d sleep", pid)
			if !slices.Contains([]syscall.Signal{syscall.SIGKILL}, status.Signal()) {
				l.want("it was not killed: %v", status)
			}
		},
		got: func(r *toolRun) []string { return r.lines("tpid", "tcomm") }},
}

// le32 reads a number of 4 bytes.
func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

func vfsLoad(l *load) {
	zero := ok(unix.Open("/dev/zero", unix.O_RDONLY, 0))
	fd := file("vfs")
	for range 17 {
		ok(unix.Read(zero, make([]byte, 8)))
	}
	for range 13 {
		ok(unix.Write(fd, make([]byte, 8)))
	}
	// The system call has vfs_fsync inlined; asynchronous I/O calls it.
	exitOnError(fsyncAsync(fd, 5))
	closeAll(zero, fd)
	for i := range 7 {
		name := fmt.Sprint("made", i)
		exitOnError(unix.Mknod(name, unix.S_IFREG|0o644, 0))
		exitOnError(unix.Close(ok(unix.Open(name, unix.O_RDONLY, 0))))
		exitOnError(unix.Unlink(name))
	}
	l.want("read 17 write 13 fsync 5 open 9 create 7")
}

func vfsSeen(r *toolRun) []string {
	n := r.globalVar("stats").([]any)
	return []string{fmt.Sprintf("read %v write %v fsync %v open %v create %v", n[0], n[1], n[2], n[3], n[4])}
}

func fsdistLoad(l *load) {
	for i := range 7 {
		fd := file(fmt.Sprint("/mnt/dist", i))
		for range i {
			ok(unix.Pwrite(fd, make([]byte, 10), 0))
		}
		for range 2 * i {
			ok(unix.Pread(fd, make([]byte, 10), 0))
		}
		for range i / 2 {
			exitOnError(unix.Fsync(fd))
		}
		exitOnError(unix.Close(fd))
	}
	unix.Sync() // nothing is to be written later, while another tool counts
	l.want("read 42 write 21 open 7 fsync 9")
}

func fsdistSeen(r *toolRun) []string {
	n := [5]int{}
	for i, h := range r.globalVar("hists").([]any) {
		n[i] = total(h.(map[string]any)["slots"])
	}
	return []string{fmt.Sprintf("read %d write %d open %d fsync %d", n[0], n[1], n[2], n[3])}
}

func fsslowerLoad(l *load) {
	for i := range 4 {
		name, size := fmt.Sprint("slower", i), 100*(i+1)
		fd := file("/mnt/" + name)
		l.want("2 0 0 %s", name)
		for j := range 3 {
			l.want("1 %d %d %s", j*size, ok(unix.Write(fd, make([]byte, size))), name)
		}
		l.want("0 50 %d %s", ok(unix.Pread(fd, make([]byte, 1000), 50)), name)
		exitOnError(unix.Fsync(fd))
		l.want("3 0 %d %s", int64(1<<63-1), name)
		exitOnError(unix.Close(fd))
	}
	unix.Sync()
}

func fsslowerSeen(r *toolRun) []string { return r.lines("op", "offset", "size", "file") }

// filterLoad leaves of lines those of files with such names: the load's process may go on to the next tool while the tool is attached.
func filterLoad(lines []string, prefix string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, prefix) })
}
