package script

import (
	"strings"
	"testing"
)

// TestProviders: what the probes of each provider are attached to, and what is refused.
func TestProviders(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`uprobe:main { @[func, probe] = count(); }`, "kprobe main"},
		{`u:m* { }`, "kprobe main"},
		{`uprobe:0x401000 { }`, "kprobe 0x401000"},
		{`uretprobe:main { @ = retval; }`, "kretprobe main"},
		{`fentry:vmlinux:vfs_read { }`, "kprobe vfs_read"},
		{`fexit:vfs_read { @ = retval; }`, "kretprobe vfs_read"},
		{`kprobe:nf_nat:nf_nat_setup_info { @[func] = count(); }`, "kprobe nf_nat:nf_nat_setup_info"},
		{`kprobe:fs/read_write.c:450 { @[func, probe, reg("di")] = count(); }`, "kprobe vfs_read+16, kprobe nf_nat:nf_nat_setup_info+4"},
		{`kprobe:inline:rw_verify_area { }`, "kprobe vfs_read+16, kprobe nf_nat:nf_nat_setup_info+4"},
		{`watchpoint:jiffies:8:w { @[kstack] = count(); }`, "watch w@jiffies:8"},
		{`w:jiffies+4:4:wr { }`, "watch rw@jiffies+4:4"},
		{`watchpoint:0x1000:1:x { }`, "watch x@0x1000"},
		{`vm:reset { } vm:crash { @++; }`, ""},
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
	if err != nil || len(s.Events[EventReset]) != 1 || len(s.Events[EventStart]) != 1 || len(s.Events[EventCrash]) != 1 || s.Attached() != 3 {
		t.Errorf("events %v, %v", s.Events, err)
	}

	s, err = Compile(`profile:hz:99 { @[kstack, comm] = count(); } p:ms:5 { @p[reg("ip"), cpu] = count(); } vm:exit:i*, vm:exit:hlt { @x[probe] = count(); }`, target, Options{CPUs: 1})
	if err != nil || len(s.Samples) != 2 || s.Samples[0].Period != 10101010 || len(s.Exits) != 2 || s.Exits[0].Reason != "io" || s.Exits[1].Reason != "hlt" || s.Probes != 0 || s.Attached() != 4 {
		t.Errorf("samples %+v, %v", s, err)
	}

	for _, c := range [][2]string{
		{`profile:hz:0 { }`, "profile: want a number above 0"},
		{`profile:hz:99 { print(arg0); }`, "The arg0 builtin can not be used with 'profile' probes"},
		{`profile:hz:9999 { }`, "HINT: write profile:hz:99 or profile:ms:10"},
		{`vm:exit:x* { }`, "no vCPU leaves the guest for x*\nvm:exit:x* { }\n~~~~~~~~~~\nHINT: there are io, hlt, debug"},
		{`uprobe:vfs_read { }`, "ERROR: vfs_read is not in user code"},
		{`uretprobe:vfs_read { }`, "HINT: write kretprobe:vfs_read"},
		{`uprobe:0x1000 { }`, "0x1000 is not in user code"},
		{`uprobe:vfs_* { }`, "No matches for uprobe vfs_*"},
		{`kprobe:fs/read_write.c:9 { }`, "ERROR: no code is of fs/read_write.c:9\nkprobe:fs/read_write.c:9 { }\n~~~~~~~~~~~~~~~~~~~~~~~~"},
		{`kretprobe:fs/read_write.c:450 { }`, "a place in the source has no return"},
		{`kprobe:fs/read_write.c:450 { print(args.count); }`, "args"},
		{`uprobe:libssl:SSL_read { }`, "libssl is no file of the guest\nuprobe:libssl:SSL_read { }\n~~~~~~~~~~~~~~~~~~~~~~\nHINT: write where it is there, as uprobe:/usr/lib/x86_64-linux-gnu/libssl.so:SSL_read"},
		{`uprobe:/bin/sh { }`, "want a function behind the file"},
		{`uprobe:/bin/sh:main { }`, "No matches for uprobe /bin/sh:main"},
		{`kprobe:mod: { }`, "want a function, with +OFFSET or without, or an address"},
		{`uretprobe:main+4 { }`, "a uretprobe has no offset"},
		{`watchpoint:jiffies:3:w { }`, "invalid length 3\nwatchpoint:jiffies:3:w { }\n~~~~~~~~~~~~~~~~~~~~~~\nHINT: write watchpoint:SYMBOL:8:w, with 1, 2, 4 or 8 bytes, and w, rw or x"},
		{`watchpoint:jiffies:8:r { }`, "no watch for reads alone"},
		{`watchpoint:jiffies:8:q { }`, "invalid mode q"},
		{`watchpoint:jiffies { }`, "want SYMBOL:LENGTH:MODE"},
		{`watchpoint:vfs_read+arg1:8:w { }`, "an argument of a function cannot be watched"},
		{`watchpoint:jiff*:8:w { }`, "want a pattern for functions"},
		{`watchpoint:jiffie:8:w { }`, "No matches for watchpoint jiffie:8:w"},
		{`watchpoint:jiffies:8:w { print(arg0); }`, "The arg0 builtin can not be used with 'watchpoint' probes"},
		{`asyncwatchpoint:jiffies:8:w { }`, "HINT: write watchpoint"},
		{`vm:halt { }`, "there is no vm:halt"},
		{`vm:exit { print((pid, arg0)); }`, "The arg0 builtin can not be used with 'vm' probes"},
		{`usdt:/bin/sh:x { }`, "HINT: write uprobe: of the function that it is in"},
		{`hardware:cycles:1 { }`, "HINT: the host does not lend the guest's counters"},
	} {
		if _, err := Compile(c[0], target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want %q", c[0], err, c[1])
		}
	}
}
