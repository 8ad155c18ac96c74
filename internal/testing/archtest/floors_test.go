package archtest

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// maxUpward is how many identifiers may be used from below, in all packages that have floors.
const maxUpward = 60

// floor is a part of a package, over those before it.
type floor struct {
	name  string
	about string
	files string // without .go
}

// floorsOf are the floors of the packages that have some, from the ground up. A file uses what is on its own floor and on those below.
var floorsOf = map[string][]floor{
	"probe": {
		{"words", "what an engine runs on, and its errors", "doc target reason errno dr"},
		{"things", "what a probe, a site, a slot, a detour and a followed call are, and the vCPUs that come to them",
			"stage kind kprobe kretprobe watch handler context args space info core control cpu registration retprobe site shown plan emulate slot detour resident stance instances walks"},
		{"text", "where a probe may be, and how text becomes an int3 and a jump", "check function functionindex plainentry exits arm board jump jumponly assemble stagecode walkcode optimize pass reconcile"},
		{"kinds", "what returns, jprobes and watches have of their own", "checkreturn jprobe mirror leaves return returns moved recycle instancecode undo frames stack watchset"},
		{"hits", "what a vCPU does at a trap", "hit detourhit watchhit fault stop"},
		{"changes", "how probes come and go", "registry register instops companions watchregister enable pending milestone reload change collect blacklist textread list"},
		{"engine", "the engine, and the guest without it", "engine sample own poke apart contexts settle disarm withdraw walkhold"},
	},
	"internal/server/http": {
		{"wire", "requests, answers, streams and options", "doc errors respond query operation size kernel names socket peer conns stream effort log loglimit scriptlog gdbregs options guestflags vmflags"},
		{"guest", "the guest that is served, and its state", "cache guest image source startcheck inspector frames tasks disas runcontrol state sampler convert"},
		{"features", "what can be seen and changed of it", "passed backtrace look memory places typelist registers setregs step stops vars knobs text console changed symbols " +
			"events eventhost eventlines counts profile durations probehost probes program programmaps"},
		{"scripts", "scripts that run", "script scriptdata scriptfollow scripthost scriptkeep scriptrun scriptsample charts check fleetpublish"},
		{"control", "who stops the guest, saves it and resets it", "gdbbreak gdbguest gdbrun restorer snapshot crashsave guestcontrol"},
		{"server", "the daemon with all of it", "server filecopy runtime service web metrics attachstart fleet fleetdefs reload gdb optimization config"},
		{"routes", "the addresses of requests", "core routes routesguest routesprobes vm"},
		{"start", "the program", "jail vmserve run inprocess"},
	},
}

// usedFromBelow are the identifiers that are used from below their floor, with the reason; methods with their types, fields with theirs left out.
var usedFromBelow = map[string]map[string]string{
	"probe": {
		"places":                "a registration is checked at a place before it has a site: checks are methods of the registration's kind",
		"place":                 "see places",
		"slots":                 "a slot is taken from the table that hands it out",
		"maxRegion":             "how far a jump may reach bounds what is looked through around an address",
		"site.detour":           "a site's stages are asked of its detour",
		"optimization":          "a site has its jump's state",
		"Unoptimized":           "listings say why there is no jump",
		"touch":                 "a detour lists the accesses of its stages",
		"core.maxActive":        "a kretprobe's registration has as many records",
		"jprobe":                "which mirror runs is asked of a registration's kind",
		"batch":                 "a kind adds the hidden probes that it needs",
		"returns":               "a kind makes what its calls are followed by",
		"MaxJprobeStack":        "a mirror's copy of the stack has that size",
		"core.mirroring":        "a site where mirrors end stays armed while one is under way",
		"instances.reclaim":     "a kretprobe that ends gives its records back",
		"instances.sweep":       "see reclaim",
		"instances.activeCount": "see reclaim",
		"core.resolveReturn":    "a record that is used again is one for the same return address",
		"site.returnMemory":     "a jump is built near the code of returns",
		"cpu.askFault":          "an emulated instruction that faults asks the handlers of the probe",
		"cpu.runPostHandlers":   "an emulated instruction is done at once",
		"cpu.abandonStep":       "a return that comes in a step ends it",
		"cpu.execute":           "a hit of another address space executes the instruction alone",
		"collector":             "each kind of memory says what of it is in use",
		"marking":               "see collector",
		"registry":              "a registration has the registry that it is in",
		"Engine":                "its methods stand beside the parts that they are about",
		"Engine.registry":       "see Engine",
		"core.Probed":           "the code of stages asks what is probed",
		"core.firstRule":        "a detour that walks stacks begins with the rule of its site",
	},
	"internal/server/http": {
		"loopbackFault":            "options check the addresses that they name",
		"timedAtMost":              "an option's bound",
		"fleetMapsEvery":           "an option's default",
		"options.checkSaveOnCrash": "options are checked by the parts that use them",
		"options.checkFleet":       "see checkSaveOnCrash",
		"options.checkJail":        "see checkSaveOnCrash",
		"options.fleetFlags":       "options are declared by the parts that use them",
		"userValue":                "see fleetFlags",
		"scriptError":              "places and scripts say the same of a script that does not compile",
		"debugged":                 "a debugger holds the guest",
		"holds":                    "see debugged",
		"runControl.wireGuest":     "counts are sent with the state of the guest",
		"options.flagError":        "which guest is booted is an option's meaning",
		"onLoopback":               "the check of a listener's address",
		"server":                   "handlers that need the whole daemon are its methods",
		"pid":                      "see server",
		"routes":                   "the document of the interface is made of the routes",
		"route.Operation":          "see routes",
		"server.handler":           "the server serves its routes",
		"recorder":                 "a stream flushes through it",
		"stall":                    "see recorder",
		"asked":                    "files that the jail lets through are asked for",
		"options.ownMemory":        "the memory limit's check",
	},
}

// TestFloors: in a package with floors no file uses what is declared above it, but what usedFromBelow lists.
func TestFloors(t *testing.T) {
	files := map[string][]*goFile{}
	for _, f := range load(t) {
		if floorsOf[f.pkg] != nil && !f.test {
			files[f.pkg] = append(files[f.pkg], f)
		}
	}
	exports := listExports(t, slices.Sorted(maps.Keys(floorsOf)))
	total := 0
	for pkg, floors := range floorsOf {
		level := map[string]int{}
		for i, fl := range floors {
			for _, name := range strings.Fields(fl.files) {
				if _, twice := level[name+".go"]; twice {
					t.Errorf("%s: %s.go is on two floors", pkg, name)
				}
				level[name+".go"] = i
			}
		}
		for _, f := range files[pkg] {
			if _, ok := level[f.name]; !ok {
				t.Errorf("%s is on no floor: add it to floorsOf", f.path)
			}
		}
		if len(level) != len(files[pkg]) {
			t.Errorf("%s: floorsOf has %d files, the package %d", pkg, len(level), len(files[pkg]))
		}
		used := map[string]bool{}
		for _, u := range usesInside(t, pkg, files[pkg], exports) {
			if level[u.from] >= level[u.to] {
				continue
			}
			used[u.name] = true
			if usedFromBelow[pkg][u.name] == "" {
				t.Errorf("%s/%s (%s) uses %s of %s (%s), which is above it: move one of them", pkg, u.from, floors[level[u.from]].name, u.name, u.to, floors[level[u.to]].name)
			}
		}
		for name := range usedFromBelow[pkg] {
			if total++; !used[name] {
				t.Errorf("%s: %s is not used from below any more: remove it from usedFromBelow", pkg, name)
			}
		}
	}
	if total > maxUpward {
		t.Errorf("%d identifiers are used from below, at most %d", total, maxUpward)
	}
}

// innerUse is a use of an identifier that another file of the package declares.
type innerUse struct{ from, to, name string }

// usesInside returns the uses between the files of a package, each once.
func usesInside(t *testing.T, pkg string, files []*goFile, exports map[string]string) []innerUse {
	t.Helper()
	fset := files[0].fset
	var asts []*ast.File
	for _, f := range files {
		asts = append(asts, f.ast)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(p string) (io.ReadCloser, error) {
		if exports[p] == "" {
			return nil, fmt.Errorf("no export data of %s", p)
		}
		return os.Open(exports[p])
	})}
	checked, err := conf.Check(path.Join(module, pkg), fset, asts, info)
	if err != nil {
		t.Fatal(err)
	}
	fields := fieldOwners(checked)
	base := func(p token.Pos) string { return path.Base(fset.Position(p).Filename) }
	seen := map[innerUse]bool{}
	for id, o := range info.Uses {
		if o.Pkg() != checked {
			continue
		}
		u := innerUse{base(id.Pos()), base(o.Pos()), o.Name()}
		switch x := o.(type) {
		case *types.Func:
			if r := x.Signature().Recv(); r != nil {
				u.name = typeName(r.Type()) + "." + u.name
			}
		case *types.Var:
			if x.Embedded() {
				u.name = fields[x] + "." + u.name
			}
		}
		if u.from != u.to {
			seen[u] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b innerUse) int { return strings.Compare(a.from+a.to+a.name, b.from+b.to+b.name) })
}

// fieldOwners returns the names of the types that embedded fields are in.
func fieldOwners(p *types.Package) map[*types.Var]string {
	out := map[*types.Var]string{}
	for _, name := range p.Scope().Names() {
		if s, ok := p.Scope().Lookup(name).Type().Underlying().(*types.Struct); ok {
			for f := range s.Fields() {
				out[f] = name
			}
		}
	}
	return out
}

// typeName returns the name of a receiver's type.
func typeName(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj().Name()
	}
	return t.String()
}

// listExports returns the files with the types of what the packages import, which the go command has in its cache or makes.
func listExports(t *testing.T, pkgs []string) map[string]string {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, p := range pkgs {
		args = append(args, "./"+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = root(t), os.Stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	out := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		name, file, _ := strings.Cut(sc.Text(), " ")
		out[name] = file
	}
	return out
}
