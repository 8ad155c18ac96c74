package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// floors are all packages of the module from the ground up. A package imports only
// packages of the lines below its own: no arrow runs upward, and none along a floor.
// The lines follow the folders: guest, probe, kvm, internal, cmd.
var floors = [][]string{
	{"guest/x86", "guest/files", "guest/types", "guest/dies", "guest/builtin"},
	{"guest/x86/text", "guest/elf"},
	{"guest/sdt"},
	{"guest"},
	{"guest/linux", "guest/debuginfo", "guest/elfbuild"},
	{"guest/symfile"},

	{"probe/flow", "probe/code", "probe/bpf", "probe/remote/internal/version"},
	{"probe", "probe/bpfgen", "probe/remote/api"},
	{"probe/remote"},
	{"probe/event", "probe/script"},
	{"probe/evbpf"},
	{"probe/program", "probe/source"},
	{"probe/session"},

	{"kvm", "kvm/device"},
	{"kvm/host", "kvm/snapshot", "kvm/foreign"},
	{"kvm/machine"},

	{"internal/testing/archtest", "internal/testing/doctest", "internal/testing/fuzzing", "internal/testing/kerneltest", "internal/testing/kvmtest",
		"internal/testing/linuxtest", "internal/testing/patience", "internal/testing/probetest", "internal/testing/scripttest"},
	{"internal/testing/sessiontest"},
	{"internal/analyze", "internal/command", "internal/inguest", "internal/scriptfiles"},
	{"internal/show/chart", "internal/show/testreport", "internal/show/timeline"},
	{"internal/show/profile", "internal/show/report", "internal/show/top"},
	{"internal/server/fleet", "internal/server/gdb", "internal/server/jail", "internal/server/metrics", "internal/server/saved", "internal/server/service", "internal/server/web"},
	{"internal/server/fleetd", "internal/server/http"},
	{"internal/cli/child", "internal/cli/tools"},
	{"internal/cli"},
	{"internal/dev/bpftest", "internal/dev/btsuite", "internal/dev/hostdoc", "internal/dev/openapi", "internal/dev/oracle", "internal/dev/soak"},
	{"internal/dev/bench", "internal/dev/torture"},
	{"internal/dev"},
	{"cmd/gpdev", "cmd/guestprobe", "cmd/guestprobe-fleetd", "cmd/guestprobed"},
}

// upward are the imports that floors does not allow, with the reason.
var upward = []struct{ from, to, why string }{}

// wire are the packages that probe/remote/api may import: no type of the engine's becomes a promise by being sent.
var wire = []string{"probe/remote/internal/version"}

// alone are packages that import no other one of ours, but that one, if any.
var alone = []struct{ pkg, but, why string }{
	{"guest/x86", "", "instructions are bytes"},
	{"guest/files", "", "a file is what a path leads to"},
	{"guest/types", "", "BTF is read from bytes"},
	{"guest/dies", "", "DWARF is read from bytes"},
	{"internal/server/gdb", "guest/x86", "the protocol knows no machine: what a debugger sees is an interface, and registers have the names of the one table"},
	{"internal/server/jail", "", "what a process gives up does not depend on what it does"},
	{"internal/server/service", "", "a service manager's protocol is about processes"},
	{"internal/show/chart", "", "charts draw numbers"},
}

// only names the packages that may import something from outside, with the
// reason why all others may not.
var only = []struct {
	prefix string
	pkgs   []string
	why    string
}{
	{"github.com/bobuhiro11/gokvm", []string{"kvm"}, "kvm is the fence around gokvm's descriptors and retries"},
	{"github.com/cilium/ebpf", []string{"guest/debuginfo", "guest/linux", "guest/types", "internal/testing/kerneltest", "kvm/foreign", "probe/bpf", "probe/bpfgen", "probe/event", "probe/evbpf", "probe/script", "internal/dev/bench", "internal/dev/bpftest", "internal/dev/btsuite"}, "it parses objects and types and models instructions, which run in our machines; in the host's kernel they only read where its VMs are"},
	{"github.com/klauspost/compress", []string{"guest/linux", "guest/elf", "internal/testing/kerneltest"}, "kernels and sections of files are packed with zstd; nothing of ours is"},
	{"github.com/ianlancetaylor/demangle", []string{"guest"}, "names of symbols are demangled in one place"},
	{"github.com/ulikunitz/xz", []string{"guest/linux", "internal/testing/kerneltest"}, "kernels are packed with xz; nothing of ours is"},
	{"github.com/spf13/cobra", []string{"internal/command"}, "every command line is declared and run in one way"},
	{"github.com/pelletier/go-toml", []string{"internal/command"}, "a file of configuration is flags; nothing else is TOML"},
	{"go.yaml.in/yaml", []string{"internal/dev/openapi"}, "the document of the API is YAML; nothing that a program of users reads or writes is"},
	{"github.com/google/pprof", []string{"internal/cli", "internal/show/profile"}, "it is the form of profiles; stacks are api's until then"},
	{"charm.land/bubbletea", []string{"internal/cli"}, "it has the terminal; what is shown knows of none"},
	{"github.com/prometheus", []string{"internal/server/metrics"}, "it writes what Prometheus reads; what counts knows nothing of it"},
	{"google.golang.org/protobuf", []string{"internal/show/timeline"}, "protowire makes Perfetto's packets; nothing else of ours is protobuf"},
	{"github.com/coder/websocket", []string{"internal/server/web"}, "streams of the page come by it"},
	{"github.com/nats-io/nats-server", []string{"internal/server/fleetd"}, "it is heavy: 13 MB that only the server of a fleet is to have"},
	{"github.com/nats-io", []string{"internal/server/fleet", "internal/server/fleetd"}, "what a connection is carried by is nobody else's"},
	{"github.com/landlock-lsm", []string{"internal/server/jail"}, "what a process gives up is in one place"},
	{"kernel.org/pub/linux/libs/security/libcap", []string{"internal/server/jail"}, "what a process gives up is in one place"},
	{"net/http", []string{"probe/remote", "internal/server/http", "internal/server/metrics", "internal/dev/soak", "internal/server/web"}, "the engine has no network"},
	{"golang.org/x/arch", []string{"guest/x86/text"}, "x86asm prints; it is wrong about lengths, so nothing that decides may use it"},
	{"log", nil, "logging is an injected *slog.Logger"},
}

func TestImportGraph(t *testing.T) {
	floor := map[string]int{}
	for i, pkgs := range floors {
		for _, p := range pkgs {
			if _, twice := floor[p]; twice {
				t.Errorf("%s is on two floors", p)
			}
			floor[p] = i
		}
	}
	found, imported := map[string]bool{}, map[string]bool{}
	for _, f := range load(t) {
		own, known := floor[f.pkg]
		if !known {
			t.Errorf("%s: package %s is on no floor; give it its line in floors, and its place in docs/architecture.md", f.path, f.pkg)
			continue
		}
		found[f.pkg] = true
		if f.test {
			continue
		}
		for _, imp := range f.imports() {
			for _, o := range only {
				if (imp == o.prefix || strings.HasPrefix(imp, o.prefix+"/") && o.prefix != "log") && !slices.Contains(o.pkgs, f.pkg) {
					t.Errorf("%s: %s may not import %s: %s", f.path, f.pkg, imp, o.why)
				}
			}
			to, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			for _, a := range alone {
				if a.pkg == f.pkg && a.but != to {
					t.Errorf("%s: %s imports %s, and is to import nothing of ours: %s", f.path, f.pkg, to, a.why)
				}
			}
			if f.pkg == "probe/remote/api" && !slices.Contains(wire, to) {
				t.Errorf("%s: the types of the API may not import %s", f.path, to)
			}
			if n, ok := floor[to]; !ok || n < own {
				continue
			}
			imported[f.pkg+" "+to] = true
			if !slices.ContainsFunc(upward, func(x struct{ from, to, why string }) bool { return x.from == f.pkg && x.to == to }) {
				t.Errorf("%s: %s imports %s, which is not below it", f.path, f.pkg, to)
			}
		}
	}
	for p := range floor {
		if !found[p] {
			t.Errorf("floors has %s, which does not exist", p)
		}
	}
	for _, x := range upward {
		if !imported[x.from+" "+x.to] {
			t.Errorf("the exception for %s, which imports %s, is not needed", x.from, x.to)
		}
	}
}

// TestFoldersAreFloors: the lines of floors go through the folders in their order,
// so that what imports what can be seen from the paths.
func TestFoldersAreFloors(t *testing.T) {
	order := []string{"guest", "probe", "kvm", "internal", "cmd"}
	last := 0
	for _, pkgs := range floors {
		for _, p := range pkgs {
			top, _, _ := strings.Cut(p, "/")
			i := slices.Index(order, top)
			if i < last {
				t.Errorf("%s is above packages of %s", p, order[last])
			}
			last = max(last, i)
		}
	}
}

// TestFuzzTargetsWork: a package with fuzz targets imports what keeps them at work.
func TestFuzzTargetsWork(t *testing.T) {
	targets, working := map[string]int{}, map[string]bool{}
	for _, f := range load(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				targets[f.pkg]++
			}
		}
		if slices.Contains(f.imports(), module+"/internal/testing/fuzzing") {
			working[f.pkg] = true
		}
	}
	for pkg, n := range targets {
		if !working[pkg] {
			t.Errorf("package %s has %d fuzz targets, and its tests do not import internal/testing/fuzzing", pkg, n)
		}
	}
	if len(targets) < 10 {
		t.Errorf("only %d packages have fuzz targets", len(targets))
	}
}

// TestEngineKnowsNoKVM guards the one edge the whole design rests on, tests
// included: what can be tested without /dev/kvm must not start to need it. The client
// of a daemon is no part of the engine, and its examples run with a real daemon.
func TestEngineKnowsNoKVM(t *testing.T) {
	for _, f := range load(t) {
		if f.pkg != "probe" && !strings.HasPrefix(f.pkg, "probe/") || f.pkg == "probe/remote" && f.test {
			continue
		}
		for _, imp := range f.imports() {
			if imp == module+"/kvm" || imp == module+"/kvm/machine" || imp == module+"/internal/testing/kvmtest" {
				t.Errorf("%s imports %s: probe sees a Target, never KVM", f.path, imp)
			}
		}
	}
}
