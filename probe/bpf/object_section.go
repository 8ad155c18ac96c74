package bpf

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// ErrSection is the cause when programs in a section of that name cannot be served.
var ErrSection = errors.New("not supported")

// wants reports whether the programs of a section are selected: those of all sections,
// but for those whose names begin with ?, which libbpf does not load either unless
// somebody asks for them.
func (s *Selection) wants(section string) bool {
	if s.Section == "" {
		return !strings.HasPrefix(section, "?")
	}
	return slices.ContainsFunc(strings.Split(s.Section, ","), func(want string) bool {
		match, err := path.Match(want, section)
		return section == want || match && err == nil
	})
}

// ParseAt reads where programs attach to instead of what their sections say, for
// Selection.At: PLACE for the only program, or NAME=PLACE with commas between, where NAME
// is what a section says.
func ParseAt(text string) (map[string]string, error) {
	at := map[string]string{}
	if text == "" {
		return at, nil
	}
	for _, s := range strings.Split(text, ",") {
		name, place, named := strings.Cut(s, "=")
		if !named {
			name, place = "", s
		}
		if _, twice := at[name]; twice || place == "" || named && name == "" {
			return nil, fmt.Errorf("at %q: want PLACE, or NAME=PLACE with commas between, each name once", text)
		}
		at[name] = place
	}
	return at, nil
}

// sectionKinds says what the programs of sections that are served are.
var sectionKinds = map[string]Kind{
	"kprobe": Kprobe, "kretprobe": Kretprobe, "kprobe.multi": Kprobe, "kretprobe.multi": Kretprobe,
	"ksyscall": Kprobe, "kretsyscall": Kretprobe,
	"uprobe": Kprobe, "uprobe.s": Kprobe, "uretprobe": Kretprobe, "uretprobe.s": Kretprobe,
	"fentry": Fentry, "fentry.s": Fentry, "fexit": Fexit, "fexit.s": Fexit,
}

// inUserCode reports whether a section is about a place in user code.
func inUserCode(section string) bool {
	section = strings.TrimPrefix(section, "?")
	return strings.HasPrefix(section, "uprobe") || strings.HasPrefix(section, "uretprobe")
}

// sectionAdvice says of sections that are not served what to do instead.
var sectionAdvice = []struct{ prefixes, advice string }{
	{"tracepoint tp raw_tracepoint raw_tp raw_tracepoint.w raw_tp.w tp_btf", "the guest's tracepoints are off as long as the guest itself does not use them: put the program at a function that the tracepoint is in (kprobe/, fentry/)"},
	{"perf_event", "the host does not lend the guest's counters to programs: put the program at a function that runs periodically (kprobe/)"},
	{"uprobe.multi uretprobe.multi uprobe.session", "use uprobe/ and uretprobe/"},
	{"usdt usdt.s", "its places are known to the program's file in the guest only: name the section kprobe/ and choose the place in user code with --at"},
	{"fmod_ret fmod_ret.s", "what a program returns means nothing here: use kprobe/ and override_return"},
	{"kprobe.session", "use kprobe/ and kretprobe/"},
}

// systemCall is how functions of system calls begin in the names of x86-64 kernels
// (SYSCALL_DEFINE, arch/x86/include/asm/syscall_wrapper.h).
const systemCall = "__x64_sys_"

// sectionOf returns what the programs of a section are, and what they attach to.
func sectionOf(section string) (kind Kind, attachTo string, err error) {
	prefix, target, _ := strings.Cut(strings.TrimPrefix(section, "?"), "/")
	kind, ok := sectionKinds[prefix]
	if call, enter := strings.CutPrefix(target, "syscalls/sys_enter_"); enter && (prefix == "tracepoint" || prefix == "tp") {
		return SysEnter, systemCall + call, nil
	}
	if call, exit := strings.CutPrefix(target, "syscalls/sys_exit_"); exit && (prefix == "tracepoint" || prefix == "tp") {
		return SysExit, systemCall + call, nil
	}
	if !ok {
		for _, a := range sectionAdvice {
			if slices.Contains(strings.Fields(a.prefixes), prefix) {
				return 0, "", fmt.Errorf("%s/ is %w: %s", prefix, ErrSection, a.advice)
			}
		}
		return 0, "", fmt.Errorf("%q is %w: only kprobe/ and kretprobe/, ksyscall/ and kretsyscall/, fentry/ and fexit/, uprobe/ and uretprobe/, and tracepoint/syscalls/ are", section, ErrSection)
	}
	if strings.HasSuffix(prefix, "syscall") && target != "" {
		target = systemCall + target
	}
	if strings.HasSuffix(prefix, ".multi") && strings.ContainsAny(target, "*?") {
		return 0, "", fmt.Errorf("%s/ with a pattern is %w: choose one function with --at", prefix, ErrSection)
	}
	return kind, target, nil
}

// typedArgs returns how many words of arguments a function of the kernel has, and
// whether it returns one.
func typedArgs(p *btf.FuncProto) (words int, returns bool, err error) {
	for i, a := range p.Params {
		size, err := btf.Sizeof(a.Type)
		switch t := btf.UnderlyingType(a.Type).(type) {
		case *btf.Void:
			return 0, false, errors.New("it has a variable number of arguments")
		case *btf.Float:
			return 0, false, fmt.Errorf("argument %d is a floating-point number", i+1)
		case *btf.Struct, *btf.Union:
			if err == nil && size > 16 {
				return 0, false, fmt.Errorf("argument %d, %v, is on the stack: use kprobe/", i+1, t)
			}
		}
		if err != nil {
			return 0, false, fmt.Errorf("argument %d: %w", i+1, err)
		}
		words += (size + 7) / 8
	}
	if words > len(x86.CallArgs) {
		return 0, false, fmt.Errorf("its arguments behind the first %d are on the stack: use kprobe/", len(x86.CallArgs))
	}
	_, void := btf.UnderlyingType(p.Return).(*btf.Void)
	return words, !void, nil
}
