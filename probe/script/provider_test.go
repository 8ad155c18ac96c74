package script

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// TestProviders: the places of each provider's probes, and the rejected ones.
func TestProviders(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`uprobe:main { @[func, probe] = count(); }`, "kprobe main"},
		{`u:m* { }`, "kprobe main"},
		{`uprobe:0x401000 { }`, "kprobe 0x401000"},
		{`uretprobe:main { @ = retval; }`, "kretprobe main"},
		{`fentry:vmlinux:vfs_read { }`, "kprobe vfs_read"},
		{`fexit:vfs_read { @ = retval; }`, "kretprobe vfs_read"},
		{`fentry:vmlin*:vfs_write { }`, "kprobe vfs_write"},
		{`kprobe:*:vfs_wr* { }`, "kprobe vfs_write"},
		{`kprobe:nf_nat:nf_nat_setup_info { @[func] = count(); }`, "kprobe nf_nat:nf_nat_setup_info"},
		{`kprobe:fs/read_write.c:450 { @[func, probe, reg("di")] = count(); }`, "kprobe vfs_read+16, kprobe nf_nat:nf_nat_setup_info+4"},
		{`kprobe:inline:rw_verify_area { }`, "kprobe vfs_read+16, kprobe nf_nat:nf_nat_setup_info+4"},
		{`watchpoint:jiffies:8:w { @[kstack] = count(); }`, "watch w@jiffies:8"},
		{`w:jiffies+4:4:wr { }`, "watch rw@jiffies+4:4"},
		{`watchpoint:0x1000:1:x { }`, "watch x@0x1000"},
		{`rawtracepoint:sched_switch { @[func, probe] = count(); }`, "kprobe tracepoint:sched_switch"},
		{`tracepoint:sched:* { print((args.comm, args.pid, str(args.filename))); }`, "kprobe tracepoint:sched:sched_process_exec, kprobe tracepoint:sched:sched_switch"},
		{`rt:sys_* { @ = arg0; }`, "kprobe tracepoint:sys_enter, kprobe tracepoint:sys_exit"},
		{`rawtracepoint:vmlinux:sched_switch { print(args.count); print(arg5); }`, "kprobe tracepoint:sched_switch"},
		{`vm:reset { } vm:crash { @++; }`, ""},
		{`rawtracepoint:vm*:sys_enter { }`, "kprobe tracepoint:sys_enter"},
		{`tracepoint:*switch { }`, "kprobe tracepoint:sched:sched_switch"},
		// Patterns for probe types.
		{`t*point:sched:sched_switch { }`, "kprobe tracepoint:sched:sched_switch"},
		{`*:sched:sched_switch { @[probe] = count(); }`, "kprobe tracepoint:sched:sched_switch"},
		{`*point:vmlinux:sys_enter { }`, "kprobe tracepoint:sys_enter"},
		{`[kr]*:sys_enter, BEGIN { }`, "kprobe tracepoint:sys_enter"},
		{`*:/bin/app:*:reply { }`, "kprobe /usr/bin/app:0x1200, kprobe /usr/bin/app:0x1300"},
	} {
		s, err := Compile(c.script, target, Options{CPUs: 1})
		if err != nil {
			t.Errorf("%s: %v", c.script, err)
			continue
		}
		var got []string
		for _, p := range s.Object.Programs[:s.Probes] {
			got = append(got, p.Kind.String()+" "+p.AttachTo)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, want %q", c.script, got, c.want)
		}
	}
	s, err := Compile(`vm:reset, vm:start { } vm:crash { @++; }`, target, Options{CPUs: 1})
	if err != nil || len(s.Events[EventReset]) != 1 || len(s.Events[EventStart]) != 1 || len(s.Events[EventCrash]) != 1 || s.CountProbes() != 3 {
		t.Errorf("events %v, %v", s.Events, err)
	}

	s, err = Compile(`profile:hz:99 { @[kstack, comm] = count(); } p:ms:5 { @p[reg("ip"), cpu] = count(); } vm:exit:i*, vm:exit:hlt { @x[probe] = count(); }`, target, Options{CPUs: 1})
	if err != nil || len(s.Samples) != 2 || s.Samples[0].Period != 10101010 || len(s.Exits) != 2 || s.Exits[0].Reason != "io" || s.Exits[1].Reason != "hlt" || s.Probes != 0 || s.CountProbes() != 4 {
		t.Errorf("samples %+v, %v", s, err)
	}

	s, err = Compile(`software:cpu-clock:10ms { @a[probe] = count(); } s:cpu { @b++; } software:cpu-clock:1000000 { @c++; }`, target, Options{CPUs: 1})
	if err != nil || len(s.Samples) != 3 || s.Samples[0].Period != 10e6 || s.Samples[1].Period != 1e6 || s.Samples[2].Period != 1e6 || s.Probes != 0 {
		t.Errorf("samples %+v, %v", s, err)
	}

	// A field is read where each event has it.
	s, err = Compile(`tracepoint:sched:* { @ = args.pid; }`, target, Options{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.programs {
		at := map[string]int64{"tracepoint:sched:sched_process_exec": 24, "tracepoint:sched:sched_switch": 40}[g.p.probe]
		if !slices.ContainsFunc(g.Insns, func(x asm.Instruction) bool { return x.OpCode == asm.Add.Op(asm.ImmSource) && x.Constant == at }) {
			t.Errorf("%s does not read the field at %d: %v", g.p.probe, at, g.Insns)
		}
	}

	for _, c := range [][2]string{
		{`profile:hz:0 { }`, "profile: want a number above 0"},
		{`profile:hz:99 { print(arg0); }`, "The arg0 builtin can not be used with 'profile' probes"},
		{`profile:hz:2000000 { }`, "HINT: write profile:hz:99 or profile:ms:10"},
		{`vm:exit:x* { }`, "no vCPU leaves the guest for x*\nvm:exit:x* { }\n~~~~~~~~~~\nHINT: there are io, hlt, debug"},
		{`uprobe:vfs_read { }`, "ERROR: vfs_read is not in user code"},
		{`uretprobe:vfs_read { }`, "HINT: write kretprobe:vfs_read"},
		{`uprobe:0x1000 { }`, "0x1000 is not in user code"},
		{`uprobe:vfs_* { }`, "No matches for uprobe vfs_*"},
		{`kprobe:fs/read_write.c:9 { }`, "ERROR: fs/read_write.c:9 has no code\nkprobe:fs/read_write.c:9 { }\n~~~~~~~~~~~~~~~~~~~~~~~~"},
		{`kretprobe:fs/read_write.c:450 { }`, "a place in the source has no return"},
		{`kprobe:fs/read_write.c:450 { print(args.count); }`, "args"},
		{`uprobe:libssl:SSL_read { }`, "libssl is no file of the guest\nuprobe:libssl:SSL_read { }\n~~~~~~~~~~~~~~~~~~~~~~\nHINT: write where it is there, as uprobe:/usr/lib/x86_64-linux-gnu/libssl.so:SSL_read, and --file PATH=COPY with a copy, if the guest does not have it in memory"},
		{`uprobe:libm:sin { }`, "No matches for uprobe /usr/lib/libm.so.6:sin"},
		{`usdt:libm:a:b { }`, "/usr/lib/libm.so.6"},
		{`usdt:libssl:b { }`, "libssl is no file of the guest"},
		{`uprobe:/bin/sh { }`, "want a function after the file"},
		{`uprobe:/bin/sh:main { }`, "No matches for uprobe /bin/sh:main"},
		{`kprobe:mod: { }`, "want a function, with +OFFSET or without, or an address"},
		{`uretprobe:main+4 { }`, "Offset not allowed: a uretprobe has no offset"},
		{`kretprobe:vfs_read+0 { }`, "Offset not allowed: a kretprobe has no offset"},
		{`uretprobe:/bin/sh:main+0x10 { }`, "Offset not allowed: a uretprobe has no offset"},
		{`uprobe:/bin/s*:0x1234 { }`, "Cannot use wildcards with absolute address"},
		{`uprobe:/bin/sh:$a { }`, "invalid trailing character for positional param: a\nuprobe:/bin/sh:$a { }\n~~~~~~~~~~~~~~~~~\nHINT: quote this part if a $ is in a name: \"$a\""},
		{`watchpoint:1b:8:w { }`, "watchpoint: invalid address 1b"},
		{`rawtracepoint:a:b:c { }`, "want the name of a tracepoint"},
		{`x*:vfs_read { }`, "No probe type matched for x*"},
		{`*point:nothing:here { }`, "No matches for tracepoint nothing:here"},
		{`*:/bin/sh:x { }`, "HINT: the guest has to have the file in its memory"},
		{`watchpoint:jiffies:3:w { }`, "invalid length 3\nwatchpoint:jiffies:3:w { }\n~~~~~~~~~~~~~~~~~~~~~~\nHINT: write watchpoint:SYMBOL:8:w, with 1, 2, 4 or 8 bytes, and w, rw or x"},
		{`watchpoint:jiffies:8:r { }`, "no watch for reads alone"},
		{`watchpoint:jiffies:8:q { }`, "invalid mode q"},
		{`watchpoint:jiffies { }`, "want SYMBOL:LENGTH:MODE"},
		{`watchpoint:vfs_read+arg1:8:w { }`, "an argument of a function cannot be watched"},
		{`watchpoint:jiff*:8:w { }`, "want a pattern for functions"},
		{`watchpoint:jiffie:8:w { }`, "No matches for watchpoint jiffie:8:w"},
		{`watchpoint:jiffies:8:w { print(arg0); }`, "The arg0 builtin can not be used with 'watchpoint' probes"},
		{`asyncwatchpoint:jiffies:8:w { }`, "HINT: write watchpoint"},
		{`rawtracepoint:sched_swich { }`, "HINT: did you mean sched_switch?"},
		{`rawtracepoint:ext4:ext4_sync { }`, "HINT: tracepoints of modules cannot be probed"},
		{`rawtracepoint: { }`, "rawtracepoint probe type requires a tracepoint"},
		{`rawtracepoint:sys_enter { print(args.file); }`, "Can't find function parameter file"},
		{`rawtracepoint:sys_enter { print(retval); }`, "The retval builtin can only be used with 'kretprobe' probes"},
		{`tracepoint:sched_switch { }`, "want CATEGORY:NAME"},
		{`tracepoint:sched:sched_swich { }`, "HINT: did you mean sched:sched_switch?"},
		{`tracepoint:sched:sched_switch { print(arg0); }`, "The arg0 builtin can not be used with 'tracepoint' probes"},
		{`tracepoint:sched:sched_switch { print(args.pdi); }`, "HINT: did you mean pid?"},
		{`tracepoint:sched:sched_switch, rt:sys_enter { print(args.pid); }`, "args.pid is a field of an event at one place of the probe, and a parameter at another"},
		{`vm:halt { }`, "there is no vm:halt"},
		{`vm:exit { print((pid, arg0)); }`, "The arg0 builtin can not be used with 'vm' probes"},
		{`usdt:/bin/sh:x { }`, "HINT: the guest has to have the file in its memory"},
		{`software:page-faults:100 { }`, "HINT: write tracepoint:exceptions:page_fault_user"},
		{`s:cs { }`, "HINT: write tracepoint:sched:sched_switch"},
		{`software:cpu-clok { }`, "HINT: did you mean cpu-clock?"},
		{`software:cpu-clock:999 { }`, "want a number of nanoseconds, 1000 or more"},
		{`software: { }`, "unknown software event"},
		{`hardware:cycles:1 { }`, "HINT: hardware counters are not available"},
	} {
		if _, err := Compile(c[0], target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want %q", c[0], err, c[1])
		}
	}
}
