package script

import (
	"strings"
	"testing"
)

// TestMissingProbes: the places that a script names and the guest does not have, by its setting missing_probes.
func TestMissingProbes(t *testing.T) {
	const removed = "Probe has no valid attach points. It is being removed which may cause issues with program behavior."
	none := func(place string) string { return "No matches for " + place + ". Skipping." }
	for _, c := range []struct {
		script   string
		probes   int
		warnings []string
		err      string
	}{
		{script: `kprobe:vfs_read, kprobe:bad { }`, err: "No matches for kprobe bad"},
		{script: `fentry:vfs_read, fentry:bad { }`, err: "No matches for fentry bad"},
		{script: `kfunc:bad { }`, err: "No matches for fentry bad"},
		{script: `fr:bad { }`, err: "No matches for fexit bad"},
		{script: `kr:bad { }`, err: "No matches for kretprobe bad"},
		{script: `kprobe:vmlinux:bad { }`, err: "No matches for kprobe vmlinux:bad"},
		{script: `t:sched:bad { }`, err: "No matches for tracepoint sched:bad"},
		// A pattern without a match is no error beside a place.
		{script: `kprobe:vfs_read, kprobe:bad* { }`, probes: 1, warnings: []string{none("kprobe bad*")}},
		{script: `kprobe:bad*, kprobe:vfs_read { }`, probes: 1, warnings: []string{none("kprobe bad*")}},
		{script: `kprobe:vfs_read { } kprobe:bad* { }`, err: "No matches for kprobe bad*"},
		{script: `kprobe:bad*, kprobe:worse* { }`, err: "No matches for kprobe bad*"},
		{script: `kprobe:bad*, kprobe:worse { }`, err: "No matches for kprobe worse"},
		{script: `config = { missing_probes = ignore } kprobe:vfs_read, kprobe:bad* { }`, probes: 1},

		{script: `config = { missing_probes = warn } fentry:vfs_read, fentry:bad { }`, probes: 1, warnings: []string{none("fentry bad")}},
		{script: `config = { missing_probes = warn } kprobe:vfs_read { } t:sched:bad, k:bad* { }`, probes: 1, warnings: []string{none("tracepoint sched:bad"), none("kprobe bad*"), removed}},
		{script: `config = { missing_probes = ignore } kprobe:vfs_read { } t:sched:bad { }`, probes: 1},
		{script: `config = { missing_probes = warn } BEGIN { } t:sched:bad { }`, probes: 1, warnings: []string{none("tracepoint sched:bad"), removed}},
		{script: `config = { missing_probes = warn } kprobe:bad { } t:sched:bad { }`, err: "No probes to attach"},
		{script: `config = { missing_probes = ignore } kprobe:bad { } t:sched:bad { }`, err: "No probes to attach"},
		{script: `config = { missing_probes = ignore } kprobe:a1, k:a2, k:a3, k:a4 { } kprobe:a5, kprobe:a6* { }`, err: "HINT: there is no kprobe:a1, k:a2, k:a3, k:a4, kprobe:a5, ..."},
		// The statements of a removed probe have no place.
		{script: `config = { missing_probes = warn } kprobe:vfs_read { } t:sched:bad { print(args.count); @ = arg0; }`, probes: 1, warnings: []string{none("tracepoint sched:bad"), removed}},
		{script: `config = { missing_probes = warn } kprobe:vfs_read { } kretprobe:bad { print(retval); print(args.x); }`, probes: 1, warnings: []string{none("kretprobe bad"), removed}},
	} {
		checkMissing(t, c.script, c.probes, c.warnings, c.err)
	}
}

// TestModules: a function of a module has to be one of that module, which has to be loaded.
func TestModules(t *testing.T) {
	for _, c := range []struct {
		script   string
		probes   int
		warnings []string
		err      string
	}{
		{script: `kprobe:nf_nat:nf_nat_setup_info { }`, probes: 1},
		{script: `kprobe:nf_*:nf_nat_setup_info { }`, probes: 1},
		{script: `kprobe:vmlinux:vfs_read { }`, probes: 1},
		{script: `kprobe:bad:vfs_read { }`, err: "ERROR: specified module bad in probe kprobe:bad:vfs_read is not loaded.\n"},
		{script: `kr:bad:vfs_read { }`, err: "ERROR: specified module bad in probe kretprobe:bad:vfs_read is not loaded.\n"},
		{script: `fentry:bad:vfs_read { }`, err: "ERROR: specified module bad in probe fentry:bad:vfs_read is not loaded.\n"},
		{script: `fexit:bad:vfs_read { }`, err: "ERROR: specified module bad in probe fexit:bad:vfs_read is not loaded.\n"},
		{script: `kprobe:8021q:vlan_dev_init+4 { }`, err: "ERROR: specified module 8021q in probe kprobe:8021q:vlan_dev_init+4 is not loaded.\n"},
		{script: `kprobe:fs:vfs_read { }`, err: "HINT: fs is a directory"},
		{script: `config = { missing_probes = warn } kprobe:vfs_read, kprobe:bad:vfs_read { }`, err: "specified module bad in probe"},
		{script: `config = { missing_probes = ignore } kprobe:vfs_read, kprobe:bad:vfs_read { }`, err: "specified module bad in probe"},
		// The module is loaded, the function is the kernel's, and the other way round.
		{script: `kprobe:nf_nat:vfs_read { }`, err: "No matches for kprobe nf_nat:vfs_read"},
		{script: `kretprobe:nf_nat:vfs_read { }`, err: "No matches for kretprobe nf_nat:vfs_read"},
		{script: `fentry:nf_nat:vfs_read { }`, err: "No matches for fentry nf_nat:vfs_read"},
		{script: `kprobe:nf_*:vfs_read { }`, err: "No matches for kprobe nf_*:vfs_read"},
		{script: `kprobe:nf_nat:vfs_* { }`, err: "No matches for kprobe nf_nat:vfs_*"},
		{script: `kprobe:bad:vfs_* { }`, err: "No matches for kprobe bad:vfs_*"},
		{script: `kprobe:vmlinux:nf_nat_* { }`, err: "No matches for kprobe vmlinux:nf_nat_*"},
		{script: `kprobe:vmlinux:nf_nat_setup_info { }`, err: "No matches for kprobe vmlinux:nf_nat_setup_info"},
		// A module that may be loaded later is waited for only if the script says so.
		{script: `kprobe:later:fn { }`, err: "HINT: with config = { missing_probes = \"warn\" } the probe waits for the module"},
		{script: `config = { missing_probes = warn } kprobe:later:fn { }`, probes: 1, warnings: []string{"specified module later in probe kprobe:later:fn is not loaded. The probe waits for it."}},
		{script: `config = { missing_probes = ignore } kprobe:later:fn { }`, probes: 1},
	} {
		checkMissing(t, c.script, c.probes, c.warnings, c.err)
	}
}

// checkMissing compiles a script and checks the number of its probes and the messages.
func checkMissing(t *testing.T, script string, probes int, warnings []string, wrong string) {
	t.Helper()
	s, err := Compile(script, target, Options{CPUs: 1})
	if wrong != "" {
		if err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v, want %s", script, err, wrong)
		}
		return
	}
	if err != nil {
		t.Errorf("%s: %v", script, err)
		return
	}
	ok := s.CountProbes() == probes && len(s.Warnings) == len(warnings)
	for i := 0; ok && i < len(warnings); i++ {
		text, _, _ := strings.Cut(s.Warnings[i], "\n")
		ok = strings.HasSuffix(text, "WARNING: "+warnings[i])
	}
	if !ok {
		t.Errorf("%s: %d probes, want %d; warnings %q, want %q", script, s.CountProbes(), probes, s.Warnings, warnings)
	}
}
