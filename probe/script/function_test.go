package script

import (
	"strings"
	"testing"
	"time"
)

// memory7 is a hit with text and bytes in memory.
func memory7() hit {
	return hit{fn: "vfs_read", pid: 7, comm: "dd", time: 5e9 + 1234567, stack: []uint64{target["vfs_read"]}, args: [6]uint64{0x7000, 0x8000, 3},
		memory: map[uint64]string{0x7000: "hello world\x00", 0x8000: "\x18\xc0\x4d\x08\x2e\xbb\x0a\x00\x00\x01\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x01"}}
}

// TestFunctions calls every supported function of bpftrace, and names the unsupported
// ones: the error has the name and a suggestion. The names are from bpftrace's
// documents, 0.26 (docs/stdlib.md), and the builtins from 0.17.
func TestFunctions(t *testing.T) {
	was := time.Local
	time.Local = time.UTC
	defer func() { time.Local = was }()
	const absent = "HINT: "
	const structs = `struct addr { uint8 mac[6]; char four[4]; char sixteen[16]; }; struct task_struct { int pid; char comm[8]; struct task_struct *real_parent, *group_leader; };`
	tested := map[string]bool{}
	for _, c := range []struct{ names, call, want string }{
		{"strncmp", `print((strncmp("abcd", "abxx", 2), strncmp("abcd", "abxx", 3), strncmp("b", "abc", 9), strncmp("ab", "abc", 2), strncmp("", "", 0)))`, "(0, 1, 1, 0, 0)"},
		{"strncmp", `print((strncmp("one", "one ", 4), strncmp("one ", "one", 4), strncmp("a", "c", 1)))`, "(1, 1, 1)"},
		{"strncmp", `print(strncmp(str(arg0), "hello world", 11)); print(strncmp(str(arg0), "hello, you", 8))`, "0\n1"},
		{"memcmp", `print((memcmp("abc", "abd", 2), memcmp("abd", "abc", 3), memcmp("abc", "abf", 3), memcmp("12345678a", "12345678", 9), memcmp("\x80", "\x01", 1), memcmp("xbz", "xca", 3)))`, "(0, 1, -3, 97, -129, -1)"},
		{"strcontains", `print((strcontains("hello", "ell"), strcontains("hello", "hellos"), strcontains("aab", "ab"), strcontains("", ""), strcontains("x", "")))`, "(true, false, true, true, true)"},
		{"strcontains", `if (strcontains(str(arg0), "o w")) { print("yes") } if (!strcontains(comm, "x")) { print("no") }`, "yes\nno"},
		{"strstr", `print((strstr("hello", "l"), strstr("hello", "lo"), strstr("hello", "x"), strstr(str(arg0), "world")))`, "(2, 3, -1, 6)"},
		{"str_concat", `$s = str_concat(str(arg0), "!"); print($s); print(strlen($s)); print(str_concat("", comm)); @[str_concat("a", "b")] = 1`, "hello world!\n12\ndd\n\n\n@[ab]: 1"},
		{"strcap strlen", `print((strcap("abc"), strlen(str(arg0)), strlen("abc")))`, "(4, 11, 3)"},
		{"bswap", `printf("%x %x %x %lx\n", bswap((uint8)0x12), bswap((uint16)0x1234), bswap((uint32)0x12345678), bswap((uint64)1))`, "12 3412 78563412 100000000000000"},
		{"ntop", `print(ntop(0x0100007f)); @[ntop(AF_INET, arg2)] = 1; printf("%s\n", ntop(2, 0x08080808))`, "127.0.0.1\n8.8.8.8\n\n\n@[3.0.0.0]: 1"},
		{"ntop", `if (arg2 + 7 == AF_INET6) { print((AF_INET, AF_INET6)); }`, "(2, 10)"},
		{"offsetof", `print((ntop((uint8[4])0x04030201), ntop(AF_INET, ((struct addr *)arg1)->four), ntop(((struct addr *)arg1)->sixteen), macaddr(((struct addr *)arg1)->mac), offsetof(struct addr, mac)))`, "(1.2.3.4, 10.0.0.1, 2001:db8::1, 18:C0:4D:08:2E:BB, 0)"},
		{"ppid pcomm leader_tid leader_comm", `print((ppid, pcomm, leader_tid(), leader_comm, ppid(curtask), pcomm(curtask->group_leader)))`, "(4, parent, 5, child, 4, parent)"},
		{"macaddr", `print(macaddr(arg1)); @m = macaddr(arg1)`, "18:C0:4D:08:2E:BB\n\n\n@m: 18:C0:4D:08:2E:BB"},
		{"strftime nsecs", `print(strftime("%Y-%m-%d %H:%M:%S.%f", nsecs)); @t = strftime("%S", nsecs(boot)); printf("%s\n", strftime("%T", nsecs(tai)))`, "2000-02-29 00:00:05.001234\n00:00:05\n\n\n@t: 05"},
		{"nsecs elapsed", `print((nsecs(monotonic), nsecs(boot) == nsecs, nsecs(tai) - nsecs, nsecs(sw_tai) == nsecs(tai), elapsed == nsecs()))`, "(5001234567, true, 951782437000000000, true, true)"},
		{"time", `time("%%|%n")`, "%|"},
		{"errorf warnf", `errorf("bad %d", arg2); warnf("%s", comm)`, "stdin:2:19-41: ERROR: bad 3\nstdin:2:43-60: WARNING: dd"},
		{"assert", `assert(arg2 == 3, "three"); print(1); assert(arg2 == 4, "four"); print(2)`, "1\nstdin:2:57-82: ERROR: assert failed: four"},
		{"pid tid comm uid gid cgroup cpu ncpus numaid curtask usermode", `print((pid, tid(), pid(init), tid(curr_ns), comm(), uid, gid, cgroup, cpu(), ncpus, numaid, curtask, usermode))`, "(7, 7, 7, 7, dd, 0, 0, 0, 0, 2, 0, 0x9000, 0)"},
		{"cr3", `printf("%x\n", cr3); @[cr3] = 1; clear(@)`, "5000"},
		{"probe probetype func", `print((probe, probetype, func(), probe()))`, "(kprobe:vfs_read, kprobe, vfs_read, kprobe:vfs_read)"},
		{"jiffies rand", `print(jiffies); print(rand < 1 << 33)`, "77\ntrue"},
		{"kptr uptr is_err", `print((kptr(arg2), uptr(5), is_err(arg2), is_err(-2), is_err(-4095), is_err(-4096), *kptr((uint8 *)arg1)))`, "(3, 5, false, true, true, false, 24)"},
		{"is_array is_ptr is_str is_integer is_unsigned_integer is_literal", `print((is_ptr((int8 *)0), is_ptr(1), is_str("a"), is_str(1), is_integer(1), is_integer("a"), is_unsigned_integer(arg0), is_unsigned_integer(-1), is_literal(1), is_literal(arg0), is_array(1), is_array((int8[4])1)))`,
			"(true, false, true, false, true, false, true, false, true, false, false, true)"},
		{"ksym usym kaddr uaddr", `print((ksym(kaddr("vfs_read") + 2), usym(uaddr("vfs_write")), kaddr("vfs_read") == uaddr("vfs_read")))`, "(vfs_read, vfs_write, true)"},
		{"names of registers", `print((reg("rdi"), reg("%rdi"), reg("%di"), reg("orig_ax") == reg("%orig_ax"), reg("flags") == reg("rflags"), reg("r8") == reg("%r8")))`, "(28672, 28672, 28672, true, true, true)"},
		{"reg retval sizeof", `print((reg("di"), sizeof(arg0), sizeof((uint16)1)))`, "(28672, 8, 2)"},
		{"strerror signal_name", `print((strerror(2), signal_name(9), strerror(0), strerror(22)))`, "(No such file or directory, Killed, Success, Invalid argument)"},
		{"buf str", `printf("%r %rh %s|%s\n", buf(arg0, 3), buf(arg1, 2), buf(arg0, 2), str(arg0, 4))`, "hel 18 c0 he|hel"},
		{"count sum avg min max stats hist lhist", `@c[1] = count(); @s[1] = sum(2); @v[1] = avg(3); @l[1] = min(4); @h[1] = max(5); print((@c[1], @s[1], @v[1], @l[1], @h[1])); clear(@c); clear(@s); clear(@v); clear(@l); clear(@h)`, "(1, 2, 3, 4, 5)"},
		{"delete has_key len clear zero print printf exit", `@[1] = 2; print((has_key(@, 1), len(@), delete(@, 1), len(@))); if (1) { exit(0); } print(1)`, "(true, 1, true, 0)"},
		{"kstack", `@ = len(@x); @x[1] = 1; @s[kstack(1)] = 1; clear(@s); clear(@x); print(@)`, "@: 0\n\n\n@: 0"},

		{"ustack dw_ustack", `print(sizeof(ustack)); print(sizeof(dw_ustack(1)))`, "8\n8"}, {"join", `join(0xa140)`, ""}, {"cat", `cat("/x")`, absent}, {"system", `system("x")`, absent},
		{"signal", `signal(9)`, absent}, {"signal_thread", `signal_thread(9)`, absent}, {"write_user", `write_user(1, 2, 3)`, absent},
		{"skboutput", `skboutput("f", arg0, 1, 0)`, absent}, {"unwatch", `unwatch(1)`, absent}, {"pton", `print(pton("::1")[15])`, "1"}, {"cgroupid", `print(cgroupid("/x"))`, absent},
		{"cgroup_path", `print(cgroup_path(1))`, absent}, {"path", `print(path(arg0))`, absent}, {"container_of", `print(container_of(0x48, struct file, f_path.dentry))`, "0x0"},
		{"username", `print(username)`, absent},
		{"cpid", `print(cpid)`, absent}, {"has_cpid", `print(has_cpid)`, absent}, {"syscall_name", `print((syscall_name(1), syscall_name(0x101), syscall_name(400)))`, "(write, openat, unknown system call)"}, {"socket_cookie", `print(socket_cookie(arg0))`, absent},
		{"getopt", `print((getopt("x"), getopt("y", 3, "a number")))`, "(false, 3)"}, {"percpu_kaddr", `print(percpu_kaddr("x"))`, absent}, {"find", `let $y; @f[1] = 5; print(find(@f, 1, $y)); print($y); clear(@f)`, "true\n5"}, {"static_assert", `static_assert(sizeof(arg0) == 8, "x"); print(1)`, "1"},
		{"fail", `if (1 == 2) { fail("x"); } print(2)`, "2"}, {"typeof", `print(sizeof(typeof(arg0)))`, "8"}, {"kfunc_exist", `print(kfunc_exist("x"))`, absent},
		{"kfunc_allowed", `print(kfunc_allowed("x"))`, absent}, {"config", `print((config.max_strlen, config().stack_mode))`, "(64, bpftrace)"}, {"default_str_length", `print(default_str_length())`, "64"}, {"assert_str", `assert_str("a"); print(1)`, "1"},
		{"tseries", `@ = tseries(1, 1s, 5); clear(@)`, ""}, {"ctx", `print(ctx)`, absent}, {"stack_len", `print(stack_len(kstack) >= 0)`, "true"}, {"sarg0", `print(sarg0)`, absent},
	} {
		for n := range strings.FieldsSeq(c.names) {
			tested[n] = true
		}
		h := memory7()
		h.memory[target["jiffies_64"]] = "M"
		h.task = 0x9000
		h.memory[0x9000] = "\x05\x00\x00\x00child\x00\x00\x00\x00\x00\x00\x00\x00\xa1\x00\x00\x00\x00\x00\x00\x00\x90\x00\x00\x00\x00\x00\x00"
		h.memory[0xa100] = "\x04\x00\x00\x00parent"
		r, err := runScript(t, structs+"\nkprobe:vfs_read { "+c.call+" }", nil, false, 0, h)
		switch {
		case c.want == absent:
			if err == nil || !strings.Contains(err.Error(), c.names+" is not supported\n") || !strings.Contains(err.Error(), "\nHINT: ") {
				t.Errorf("%s: error %v, want the name and a hint", c.call, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.call, err)
		case strings.TrimSpace(r.out) != c.want || r.warnings != "":
			t.Errorf("%s\nprints\n%s\nwant\n%s\nwarnings %s", c.call, r.out, c.want, r.warnings)
		}
	}
	for _, n := range strings.Fields(`assert assert_str bswap buf cat cgroup cgroup_path cgroupid clear comm config container_of cpid cpu curtask default_str_length delete dw_ustack elapsed errorf exit
		fail find func getopt gid has_cpid has_key is_array is_err is_integer is_literal is_ptr is_str is_unsigned_integer jiffies join kaddr kfunc_allowed kfunc_exist kptr kstack ksym leader_comm
		leader_tid len macaddr memcmp ncpus nsecs ntop numaid offsetof path pcomm percpu_kaddr pid ppid print printf probe probetype pton rand reg retval signal signal_name signal_thread
		sizeof skboutput socket_cookie static_assert str str_concat strcap strcontains strerror strftime strlen strncmp strstr syscall_name system tid time typeof uaddr uid unwatch uptr usermode
		username ustack usym warnf write_user zero avg count hist lhist max min stats sum tseries`) {
		if !tested[n] {
			t.Errorf("%s is neither called nor refused", n)
		}
	}
}

// TestFunctionErrors: what a function does not take is refused with its place.
func TestFunctionErrors(t *testing.T) {
	for _, c := range [][2]string{
		{`print(strncmp("a", 1, 1))`, "strncmp() expects a string (int64 provided)"},
		{`print(strncmp("a", "b", arg0))`, "strncmp() expects a number from 0 to 1024 that is known before"},
		{`print(strftime(comm, 1))`, "strftime() expects a string literal as its first argument"},
		{`print(strftime("%H", -1))`, "strftime() can not take a negative timestamp"},
		{`print(ntop(10, 1))`, "ntop() of a value of type 'int64' is of the other family"},
		{`print(ntop((uint8[3])arg0))`, "ntop() expects a number or an array of 4 or 16 bytes"},
		{`print(macaddr("abcdef"))`, "macaddr() expects an array of 6 bytes, or where they are"},
		{`print(nsecs(foo))`, "Invalid timestamp mode: want monotonic, boot, tai or sw_tai"},
		{`print(pid(1))`, "pid() expects init or curr_ns"},
		{`print(bswap("a"))`, "bswap() only supports number arguments (string[2] provided)"},
		{`time(1)`, "time() expects a string literal as its first argument"},
		{`errorf("%d")`, "not enough arguments for format string (0 supplied, 1 expected)"},
		{`print(assert(1, "x"))`, "assert() should not be used in an expression"},
		{`print(uaddr("nothing"))`, "Failed to resolve user symbol: nothing"},
		{`@x = strftime("%H", 1); @x = strftime("%M", 1)`, "Type mismatch for @x"},
	} {
		if _, err := Compile("kprobe:vfs_read { "+c[0]+" }", target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: error %v, want %s", c[0], err, c[1])
		}
	}
}
