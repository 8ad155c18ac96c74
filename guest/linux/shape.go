package linux

import (
	"github.com/guestprobe/guestprobe/guest/elf"
)

// shape describes how to find a table without symbols around it, in a kernel without
// CONFIG_KALLSYMS_ALL: as the longest run of possible entries.
type shape struct {
	size, align int
	entry       func(k *Kernel, t *elf.Part, at int) bool
	// user is a function that only a kernel with such a table has; member is a
	// function in the table.
	user, member string
	off          string // the feature that is lost without it
}

// minRun is the number of consecutive entries that rules out chance.
const minRun = 8

var shapes = map[string]shape{
	mCount: {8, 8, func(k *Kernel, t *elf.Part, at int) bool {
		a := le64(t.Data[at:])
		return (at < 8 || a != le64(t.Data[at-8:])) && k.patchableLen(a, 0xe8, 0xe8) == 5
	}, "ftrace_init", "", "the entries of functions"},
	jumpTable: {16, 8, func(k *Kernel, t *elf.Part, at int) bool {
		to := relativeAddr(t, at+4)
		return k.patchableLen(relativeAddr(t, at), 0xe9, 0xeb) != 0 && k.isText(to) && k.isData(t.Addr+uint64(at)+8+le64(t.Data[at+8:])&^3)
	}, "jump_label_init", "", "static branches"},
	staticCallSites: {8, 4, func(k *Kernel, t *elf.Part, at int) bool {
		b := k.mem.Bytes(relativeAddr(t, at), 2)
		return b != nil && (b[0] == 0xe8 || b[0] == 0xe9 || b[0] == 0x0f && b[1]&0xf0 == 0x80) && k.isText(relativeAddr(t, at)) && k.isData(relativeAddr(t, at+4)&^3)
	}, "static_call_init", "", "static calls"},
	blacklist: {8, 8, func(k *Kernel, t *elf.Part, at int) bool {
		i := k.mem.NamesFrom(le64(t.Data[at:]))
		return i < len(k.mem.Names) && k.mem.Names[i].Addr == le64(t.Data[at:]) && k.mem.Names[i].Func
	}, "register_kprobe", "notify_die", "the blacklist of kprobes"},
}

// patchableLen returns the length of the instruction at a if it is text and a call or
// jump, or the nop that the kernel writes instead, 0 if not.
func (k *Kernel) patchableLen(a uint64, long, short byte) int {
	if a < KernelMap || !k.isText(a) {
		return 0
	}
	b := k.mem.Bytes(a, 5)
	switch {
	case b == nil:
	case b[0] == long, string(b) == "\x0f\x1f\x44\x00\x00":
		return 5
	case b[0] == short, b[0] == 0x66 && b[1] == 0x90:
		return 2
	}
	return 0
}

// isData reports whether a is in the loaded kernel, but not code.
func (k *Kernel) isData(a uint64) bool {
	lo, hi := k.program.extent()
	return a >= lo+KernelMap && a < hi+KernelMap && !k.isText(a)
}

// findByShape finds the table of that name by its shape.
func (k *Kernel) findByShape(name string) (table elf.Part) {
	s, ok := shapes[name]
	if _, hi := k.program.extent(); !ok || hi == 0 {
		return elf.Part{}
	}
	member, _ := k.mem.Lookup(s.member)
	for i := range k.mem.Sections {
		t := &k.mem.Sections[i]
		if t.X && t.Name != ".data" || t.Addr < KernelMap {
			continue
		}
		for at := -int(t.Addr) & (s.align - 1); at+s.size <= len(t.Data); {
			end, has := at, false
			for end+s.size <= len(t.Data) && s.entry(k, t, end) {
				has = has || s.size == 8 && le64(t.Data[end:]) == member
				end += s.size
			}
			if n := end - at; n >= minRun*s.size && n > len(table.Data) && (s.member == "" || has) {
				table = elf.Part{Name: name, Addr: t.Addr + uint64(at), Data: t.Data[at:end]}
			}
			at = max(end, at+s.align)
		}
	}
	return table
}

// missingTables returns the tables that the kernel may have and that were not found,
// each with the feature that is lost.
func (k *Kernel) missingTables() map[string]string {
	out := map[string]string{}
	for name, s := range shapes {
		// Not all functions are exported: a function that is not among the exports
		// may exist.
		_, has := k.mem.Lookup(s.user)
		if t := k.table(name); len(t.Data) == 0 && (has || k.nameless) {
			out[name] = s.off
		}
	}
	return out
}
