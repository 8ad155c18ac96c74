package script

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/sdt"
)

// StaticProbes returns the probes of /bin/app.
// FindFile knows libm, and the file with probes.
func (fakeTarget) FindFile(name string) string {
	return map[string]string{"libm": "/usr/lib/libm.so.6", "prog": "/bin/app"}[name]
}

func (f fakeTarget) StaticProbes(path string) ([]sdt.Probe, string, error) {
	if path != "/bin/app" {
		return nil, path, errors.New(path + ": no such file")
	}
	return []sdt.Probe{
		{Provider: "app", Name: "request", Offset: 0x1000, Semaphore: 0x4006, Args: sdt.ParseArgs("8@%rdi -4@%esi 1@%dh -1@$-9 8@%fs:0")},
		{Provider: "app", Name: "request", Offset: 0x1100, Semaphore: 0x4006, Args: sdt.ParseArgs("8@%rdx -4@-8(%rcx) 2@16(%rcx,%r8,8) 1@(,%r9,2)")},
		{Provider: "app", Name: "reply", Offset: 0x1200, Args: sdt.ParseArgs("8f@%xmm0")},
		{Provider: "app", Name: "lost", Why: "it is at 0x10, where the file has no code"},
		{Provider: "other", Name: "reply", Offset: 0x1300, Args: sdt.ParseArgs("1@$1 1@$2 1@$3 1@$4 1@$5 1@$6 1@$7 1@$8 1@$9 1@$10 -2@$-11 4@$-12")},
	}, "/usr/bin/app", nil
}

func TestStaticProbes(t *testing.T) {
	first := hit{fn: "/usr/bin/app:0x1000(0x4006)", args: [6]uint64{1 << 40, 0xffffffff_fffffffb, 0x1234}}
	second := hit{fn: "/usr/bin/app:0x1100(0x4006)", args: [6]uint64{0, 0, 77, 0x7008, 0x100, 0x4800},
		memory: map[uint64]string{0x7000: "\xfe\xff\xff\xff", 0x7818: "\x34\x92", 0x9000: "\xc8"}}
	const text = `usdt:/bin/app:app:request { printf("%s %lld %lld %lld %lld\n", probe, arg0, arg1, arg2, arg3); @[probetype] = count(); }`
	r, err := runScript(t, text, nil, false, 0, first, second, hit{fn: "/usr/bin/app:0x1200"})
	const want = "usdt:/bin/app:app:request 1099511627776 -5 18 -9\nusdt:/bin/app:app:request 77 -2 37428 200\n\n\n@[usdt]: 2\n"
	if err != nil || r.out != want || r.warnings != "" {
		t.Errorf("%q, %q, %v, want %q", r.out, r.warnings, err, want)
	}

	// A read that fails is 0, and counted.
	second.memory = nil
	r, err = runScript(t, `U:/bin/app:request { @ = arg1; }`, nil, false, 0, second)
	if err != nil || !strings.Contains(r.out, "@: 0") || r.warnings == "" {
		t.Errorf("%q, %q, %v", r.out, r.warnings, err)
	}

	r, err = runScript(t, `usdt:/bin/app:other:reply { printf("%lld %lld %lld\n", arg9, arg10, arg11); }`, nil, false, 0, hit{fn: "/usr/bin/app:0x1300"})
	if want := "10 -11 4294967284\n"; err != nil || strings.TrimRight(r.out, "\n")+"\n" != want {
		t.Errorf("%q, %v, want %q", r.out, err, want)
	}

	s, err := Compile(`usdt:/bin/app:*:re* { @[probe] = count(); } usdt:/bin/app:* /pid == 7/ { @n = count(); }`, target, Options{CPUs: 1})
	if err != nil || s.Probes != 8 || s.CountProbes() != 6 || len(s.Notes) != 0 && !strings.Contains(strings.Join(s.Notes, ""), "lost") {
		t.Errorf("%+v, %v", s, err)
	}
	if s != nil && !strings.Contains(strings.Join(append(s.Notes, s.Warnings...), "\n"), "where the file has no code (1)") {
		t.Errorf("notes %q, warnings %q", s.Notes, s.Warnings)
	}

	// All places of one probe are counted once by an attach point.
	s, err = Compile(`usdt:/bin/app:request, usdt:/bin/app:app:request, kprobe:vfs_read, kprobe:vfs_read { }`, target, Options{CPUs: 1})
	if err != nil || s.Probes != 6 || s.CountProbes() != 4 {
		t.Errorf("%+v, %v", s, err)
	}

	if s, err := Compile(`kprobe:fs/read_write.c:450 { }`, target, Options{CPUs: 1}); err != nil || s.CountProbes() != 2 {
		t.Errorf("two places of a line: %+v, %v", s, err)
	}

	for text, want := range map[string]string{
		`usdt:/bin/app:reply { }`:                           "there are probes reply of app and of other",
		`usdt:/bin/app:app:reply { print(arg0); }`:          "arg0 of usdt:/bin/app:app:reply cannot be read at /usr/bin/app:0x1200: it is a floating-point number (8f@%xmm0)",
		`usdt:/bin/app:app:reply { print(arg1); }`:          "usdt:/bin/app:app:reply has 1 arguments at /usr/bin/app:0x1200",
		`usdt:/bin/app:request { print(arg4); }`:            "it is in memory of a thread's own (TLS)",
		`usdt:/bin/app:lost { }`:                            "usdt:/bin/app:lost cannot be probed: it is at 0x10, where the file has no code",
		`usdt:/bin/app:app:requst { }`:                      "did you mean request?",
		`usdt:/bin/none:x { }`:                              "/bin/none: no such file",
		`usdt:app:x { }`:                                    "app is no file of the guest",
		`usdt:/bin/app { }`:                                 "want /PATH:NAME or /PATH:PROVIDER:NAME",
		`usdt:/bin/app:a:b:c { }`:                           "want /PATH:NAME or /PATH:PROVIDER:NAME",
		`usdt:/bin/app:app:request { print(retval); }`:      "can only be used with 'kretprobe' probes",
		`usdt:/bin/app:app:request { print(args.x); }`:      "not at /usr/bin/app:0x1000(0x4006)",
		`kprobe:vfs_read { print(arg10); }`:                 "The arg10 builtin can only be used with 'usdt' probes",
		`usdt:/bin/app:app:request, BEGIN { print(arg0); }`: "can not be used with 'begin' probes",
	} {
		if _, err := Compile(text, target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}

	listed, err := List("usdt:/bin/app:*:re*", target)
	if err != nil || len(listed) != 1 || strings.Join(listed[0].Places, " ") != "/bin/app:app:request /bin/app:app:reply /bin/app:other:reply" {
		t.Errorf("%+v, %v", listed, err)
	}
	if listed, err := List("usdt:prog:app:*", target); err != nil || len(listed) != 1 || len(listed[0].Places) == 0 || !strings.HasPrefix(listed[0].Places[0], "/bin/app:app:") {
		t.Errorf("by the file's name: %+v, %v", listed, err)
	}
	if listed, err := List("uprobe:libm:s*", target); err != nil || len(listed) != 1 || listed[0].Pattern != "/usr/lib/libm.so.6:s*" {
		t.Errorf("functions by the file's name: %+v, %v", listed, err)
	}
	if _, err := List("usdt:/bin/none:*", target); err == nil {
		t.Error("listed those of no file")
	}
	if listed, err := List("*:vfs_read", target); err != nil || len(listed) == 0 {
		t.Errorf("%+v, %v", listed, err)
	}
}
