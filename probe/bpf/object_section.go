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

// ErrSection is the cause if programs in a section of that name are not supported.
var ErrSection = errors.New("not supported")

// wants reports whether the programs of a section are selected. Without a selection
// these are all sections except those whose names begin with ?, which libbpf does not
// load either unless requested.
func (s *Selection) wants(section string) bool {
	if s.Section == "" {
		return !strings.HasPrefix(section, "?")
	}
	return slices.ContainsFunc(strings.Split(s.Section, ","), func(want string) bool {
		match, err := path.Match(want, section)
		return section == want || match && err == nil
	})
}

// ParseAt reads replacements for the places in section names, for Selection.At: PLACE
// for the only program, or NAME=PLACE separated by commas, where NAME is the place in
// the section's name.
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

// sectionKinds are the kinds of the programs in supported sections.
var sectionKinds = map[string]Kind{
	"kprobe": Kprobe, "kretprobe": Kretprobe, "kprobe.multi": Kprobe, "kretprobe.multi": Kretprobe,
	"ksyscall": Kprobe, "kretsyscall": Kretprobe,
	"uprobe": Kprobe, "uprobe.s": Kprobe, "uretprobe": Kretprobe, "uretprobe.s": Kretprobe, "usdt": Kprobe, "usdt.s": Kprobe,
	"fentry": Fentry, "fentry.s": Fentry, "fexit": Fexit, "fexit.s": Fexit,
	"raw_tracepoint": Tracepoint, "raw_tp": Tracepoint, "raw_tracepoint.w": Tracepoint, "raw_tp.w": Tracepoint, "tp_btf": Tracepoint,
	"tracepoint": Event, "tp": Event,
}

// inUserCode reports whether a section names a place in user code.
func inUserCode(section string) bool {
	section = strings.TrimPrefix(section, "?")
	return strings.HasPrefix(section, "uprobe") || strings.HasPrefix(section, "uretprobe") || atStatic(section)
}

// sectionAdvice is advice for sections that are not supported.
var sectionAdvice = []struct{ prefixes, advice string }{
	{"uprobe.multi uretprobe.multi uprobe.session", "use uprobe/ and uretprobe/"},
	{"fmod_ret fmod_ret.s", "what a program returns means nothing here: use kprobe/ and override_return"},
	{"kprobe.session fsession fsession.s", "use one section for the entry, and one for the return"},
	{"lsm lsm.s lsm_cgroup xdp xdp.frags tc tcx action classifier netkit socket sk_reuseport sk_lookup sk_skb sk_msg sockops flow_dissector lwt_in lwt_out lwt_xmit lwt_seg6local " +
		"cgroup cgroup_skb netfilter struct_ops struct_ops.s iter iter.s syscall freplace", "the guest's kernel calls such programs and uses their results, and they would not be in the kernel: leave them out by --section"},
}

// systemCall is the prefix of the functions of system calls in x86-64 kernels
// (SYSCALL_DEFINE, arch/x86/include/asm/syscall_wrapper.h).
const systemCall = "__x64_sys_"

// sectionOf returns the kind of the programs of a section, and the place that they
// attach to.
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
				return 0, "", fmt.Errorf("%q is %w: %s", section, ErrSection, a.advice)
			}
		}
		return 0, "", fmt.Errorf("%q is %w: only kprobe/ and kretprobe/, ksyscall/ and kretsyscall/, fentry/ and fexit/, uprobe/, uretprobe/ and usdt/, and tracepoint/, raw_tp/ and tp_btf/ are", section, ErrSection)
	}
	if strings.HasSuffix(prefix, "syscall") && target != "" {
		target = systemCall + target
	}
	switch {
	case target == "":
	case kind == Tracepoint:
		target = AtTracepoint + target
	case kind == Event:
		category, name, ok := strings.Cut(target, "/")
		if !ok || category == "" || name == "" || strings.ContainsAny(name, "/:") {
			return 0, "", fmt.Errorf("%q is %w: want tracepoint/CATEGORY/NAME", section, ErrSection)
		}
		target = AtTracepoint + category + ":" + name
	}
	return kind, target, nil
}

// tracepointArgs returns the number of argument words of a tracepoint whose iterator
// function has this prototype.
func tracepointArgs(p *btf.FuncProto) (words int, err error) {
	for i, a := range p.Params {
		switch size, err := btf.Sizeof(a.Type); {
		case i == 0:
		case err != nil:
			return 0, fmt.Errorf("argument %d: %w", i, err)
		case size > 8:
			return 0, fmt.Errorf("argument %d, %v, has more than one word", i, a.Type)
		default:
			words++
		}
	}
	if words > maxTracepointArgs {
		return 0, fmt.Errorf("it has %d arguments, more than %d", words, maxTracepointArgs)
	}
	return words, nil
}

// typedArgs returns the number of argument words of a kernel function, and whether it
// returns a word.
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
		return 0, false, fmt.Errorf("its arguments after the first %d are on the stack: use kprobe/", len(x86.CallArgs))
	}
	_, void := btf.UnderlyingType(p.Return).(*btf.Void)
	return words, !void, nil
}
