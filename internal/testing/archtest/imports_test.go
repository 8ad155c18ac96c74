package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// allowed is the import graph: for each package of ours the packages of ours
// that its non-test files may import. The arrows point down only.
var allowed = map[string][]string{
	"guest/x86":                   {},
	"kvm":                         {"guest/x86"},
	"guest/files":                 {},
	"guest/elf":                   {"guest/files"},
	"guest":                       {"guest/elf", "guest/x86"},
	"guest/types":                 {},
	"guest/dies":                  {},
	"guest/debuginfo":             {"guest/types", "guest/dies", "guest/elf"},
	"guest/linux":                 {"guest", "guest/types", "guest/elf", "guest/x86"},
	"guest/builtin":               {},
	"probe/flow":                  {"guest/x86"},
	"guest/x86/text":              {"guest/x86"},
	"probe/code":                  {"guest", "guest/x86"},
	"probe":                       {"guest", "probe/code", "probe/flow", "guest/x86"},
	"probe/event":                 {"guest", "guest/types", "probe", "guest/x86"},
	"probe/bpf":                   {"guest/x86"},
	"probe/bpfgen":                {"probe/bpf"},
	"probe/evbpf":                 {"guest", "probe", "probe/bpf", "probe/bpfgen", "probe/event"},
	"probe/script":                {"guest/types", "probe/bpf", "probe/bpfgen", "guest/x86"},
	"internal/program":            {"guest", "guest/linux", "probe", "probe/bpf", "probe/evbpf", "probe/event", "guest/x86"},
	"internal/testing/probetest":  {"guest", "guest/elfbuild", "probe", "probe/code", "guest/x86"},
	"internal/dev/bpftest":        {"probe/bpf"},
	"internal/testing/kvmtest":    {},
	"internal/testing/scripttest": {},
	"internal/testing/linuxtest":  {"guest", "guest/linux", "kvm/machine"},
	"internal/testing/patience":   {},
	"internal/testing/fuzzing":    {},
	"kvm/device":                  {"guest"},
	"internal/server/gdb":         {},
	"internal/testing/kerneltest": {"guest/elf"},
	"internal/dev/oracle":         {},
	"guest/elfbuild":              {"guest"},
	"guest/symfile":               {"guest", "guest/elfbuild"},
	"probe/remote/api":            {},
	"probe/remote":                {"probe/remote/api"},
	"internal/server/service":     {},
	"internal/server/jail":        {},
	"internal/cli/child":          {},
	"internal/server/fleet":       {"guest/files"},
	"internal/server/fleetd":      {"internal/command", "guest/files", "internal/server/fleet"},
	"internal/command":            {"probe/remote/api"},
	"kvm/host":                    {"guest", "kvm", "probe", "guest/x86"},
	"kvm/snapshot":                {"guest", "kvm"},
	"kvm/machine":                 {"kvm", "kvm/host", "kvm/snapshot", "guest", "guest/linux", "kvm/device", "probe", "probe/code", "guest/x86", "guest/x86/text"},
	"internal/inguest":            {"guest/elfbuild", "kvm/host", "kvm/machine", "guest", "probe/bpf", "guest/x86"},
	"internal/server/http":        {"kvm/host", "kvm/machine", "kvm/snapshot", "internal/program", "probe/remote/api", "internal/show/chart", "internal/command", "kvm/device", "guest/files", "internal/server/fleet", "internal/server/gdb", "internal/server/jail", "internal/server/metrics", "internal/show/profile", "internal/server/service", "guest/symfile", "internal/server/web", "guest", "guest/builtin", "guest/debuginfo", "guest/linux", "guest/types", "probe", "probe/bpf", "probe/event", "probe/flow", "guest/x86", "guest/x86/text", "probe/script"},
	"internal/dev/bench": {"kvm", "kvm/host", "kvm/machine", "internal/cli/child", "internal/server/http", "guest/elfbuild", "kvm/snapshot", "internal/program", "probe/remote/api", "probe/remote", "guest", "guest/builtin", "probe", "probe/bpf",
		"guest/x86", "probe/script"},
	"internal/dev/soak":       {"probe/remote/api", "internal/cli/child", "probe/remote", "guest", "guest/builtin", "kvm/snapshot", "guest/x86"},
	"internal/analyze":        {"guest", "guest/linux", "guest/elf", "probe/flow", "guest/x86"},
	"internal/show/profile":   {"probe/remote/api", "internal/show/chart"},
	"internal/show/timeline":  {"probe/remote/api", "internal/command"},
	"internal/show/report":    {"probe/remote/api", "internal/show/timeline"},
	"internal/server/metrics": {"probe/remote/api", "probe/script"},
	"internal/show/chart":     {},
	"internal/server/web":     {"probe/remote/api"},
	"internal/show/top":       {"probe/remote/api", "internal/show/chart", "internal/command"},
	"internal/cli": {"internal/analyze", "probe/remote/api", "internal/show/chart", "internal/cli/child", "probe/remote", "internal/command", "internal/server/http", "guest/files", "internal/server/fleet", "internal/inguest", "internal/show/profile", "internal/show/report", "internal/show/testreport", "internal/show/timeline", "internal/cli/tools", "internal/show/top", "kvm/host", "kvm/machine", "kvm/snapshot",
		"guest", "guest/linux", "probe/bpf", "probe/script"},
	"internal/show/testreport": {"internal/command"},
	"internal/cli/tools":       {},
	"internal/dev":             {"probe/remote/api", "internal/dev/bench", "internal/dev/bpftest", "internal/cli", "internal/command", "internal/server/http", "internal/server/fleetd", "internal/dev/hostdoc", "internal/inguest", "internal/dev/soak", "internal/dev/torture", "probe/bpf"},
	"internal/dev/torture": {"guest", "guest/elfbuild", "internal/dev/oracle", "internal/program", "kvm/host", "kvm/machine", "kvm/snapshot", "probe",
		"probe/bpf", "probe/event", "guest/x86"},
	"internal/dev/hostdoc":      {"kvm/host", "probe"},
	"internal/testing/archtest": {},
	"internal/testing/doctest":  {},
	"cmd/guestprobed":           {"internal/cli", "internal/server/http"},
	"cmd/guestprobe":            {"internal/cli"},
	"cmd/guestprobe-fleetd":     {"internal/server/fleetd"},
	"cmd/gpdev":                 {"internal/dev"},
}

// only names the packages that may import something from outside, with the
// reason why all others may not.
var only = []struct {
	prefix string
	pkgs   []string
	why    string
}{
	{"github.com/bobuhiro11/gokvm", []string{"kvm"}, "kvm is the fence around gokvm's descriptors and retries"},
	{"github.com/cilium/ebpf", []string{"guest/debuginfo", "guest/linux", "guest/types", "internal/testing/kerneltest", "probe/bpf", "probe/bpfgen", "probe/event", "probe/evbpf", "probe/script", "internal/dev/bench", "internal/dev/bpftest"}, "it parses objects and types and models instructions; what runs them is ours"},
	{"github.com/klauspost/compress", []string{"guest/linux", "guest/elf", "internal/testing/kerneltest"}, "kernels and sections of files are packed with zstd; nothing of ours is"},
	{"github.com/ianlancetaylor/demangle", []string{"guest"}, "names of symbols are demangled in one place"},
	{"github.com/ulikunitz/xz", []string{"guest/linux", "internal/testing/kerneltest"}, "kernels are packed with xz; nothing of ours is"},
	{"github.com/spf13/cobra", []string{"internal/command"}, "every command line is declared and run in one way"},
	{"github.com/pelletier/go-toml", []string{"internal/command"}, "a file of configuration is flags; nothing else is TOML"},
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
	for _, f := range load(t) {
		rule, known := allowed[f.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the import table; give it its place there and in DESIGN's layout", f.path, f.pkg)
			continue
		}
		if f.test {
			continue
		}
		for _, imp := range f.imports() {
			if own, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(rule, own) {
				t.Errorf("%s: %s may not import %s", f.path, f.pkg, own)
			}
			for _, o := range only {
				if (imp == o.prefix || strings.HasPrefix(imp, o.prefix+"/") && o.prefix != "log") && !slices.Contains(o.pkgs, f.pkg) {
					t.Errorf("%s: %s may not import %s: %s", f.path, f.pkg, imp, o.why)
				}
			}
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
// included: what can be tested without /dev/kvm must not start to need it.
func TestEngineKnowsNoKVM(t *testing.T) {
	for _, f := range load(t) {
		if f.pkg != "probe" && !strings.HasPrefix(f.pkg, "probe/") {
			continue
		}
		for _, imp := range f.imports() {
			if imp == module+"/kvm" || imp == module+"/kvm/machine" || imp == module+"/internal/testing/kvmtest" {
				t.Errorf("%s imports %s: probe sees a Target, never KVM", f.path, imp)
			}
		}
	}
}
