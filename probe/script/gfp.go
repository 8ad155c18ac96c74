package script

import (
	"fmt"
	"math/bits"
	"strings"
)

// gfpFlags are flags of allocations in the kernel, with the names of printf's %gr.
type gfpFlags struct {
	names [64]string // of single bits
	sets  []gfpSet
}

// gfpSet is a combination with a name of its own.
type gfpSet struct {
	mask uint64
	name string
}

// stableGFP are the flags that have had the same bits since Linux 4.18
// (include/linux/gfp_types.h). Bit 9 had a meaning until 6.2, and those from 23 on
// depend on the version and the configuration.
var stableGFP = []string{
	"DMA", "HIGHMEM", "DMA32", "MOVABLE", "RECLAIMABLE", "HIGH", "IO", "FS", "ZERO", "", "DIRECT_RECLAIM", "KSWAPD_RECLAIM", "WRITE", "NOWARN",
	"RETRY_MAYFAIL", "NOFAIL", "NORETRY", "MEMALLOC", "COMP", "NOMEMALLOC", "HARDWALL", "THISNODE", "ACCOUNT",
}

// laterGFP are flags that have no fixed bits. Kernels whose types include the
// enumerators ___GFP_NAME_BIT (since 6.9) say which bits.
var laterGFP = []string{"ZEROTAGS", "SKIP_ZERO", "SKIP_KASAN", "NOLOCKDEP", "NO_OBJ_EXT"}

// gfpSets are the combinations in the order in which the kernel looks for them
// (__def_gfpflag_names, include/trace/events/mmflags.h), by the names of their flags.
var gfpSets = []struct{ name, flags string }{
	{"GFP_TRANSHUGE", "IO FS HARDWALL HIGHMEM MOVABLE COMP NOMEMALLOC NOWARN DIRECT_RECLAIM"},
	{"GFP_TRANSHUGE_LIGHT", "IO FS HARDWALL HIGHMEM MOVABLE COMP NOMEMALLOC NOWARN"},
	{"GFP_HIGHUSER_MOVABLE", "DIRECT_RECLAIM KSWAPD_RECLAIM IO FS HARDWALL HIGHMEM MOVABLE"},
	{"GFP_HIGHUSER", "DIRECT_RECLAIM KSWAPD_RECLAIM IO FS HARDWALL HIGHMEM"},
	{"GFP_USER", "DIRECT_RECLAIM KSWAPD_RECLAIM IO FS HARDWALL"},
	{"GFP_KERNEL_ACCOUNT", "DIRECT_RECLAIM KSWAPD_RECLAIM IO FS ACCOUNT"},
	{"GFP_KERNEL", "DIRECT_RECLAIM KSWAPD_RECLAIM IO FS"},
	{"GFP_NOFS", "DIRECT_RECLAIM KSWAPD_RECLAIM IO"},
	{"GFP_ATOMIC", "HIGH KSWAPD_RECLAIM"},
	{"GFP_NOIO", "DIRECT_RECLAIM KSWAPD_RECLAIM"},
	{"GFP_NOWAIT", "KSWAPD_RECLAIM"},
	{"GFP_DMA", "DMA"},
	{"__GFP_HIGHMEM", "HIGHMEM"},
	{"GFP_DMA32", "DMA32"},
}

// newGFPFlags returns the flags of a kernel whose types are known, if t is not nil.
func newGFPFlags(t Types) *gfpFlags {
	f, bit := &gfpFlags{}, map[string]int{}
	give := func(name string, n int) {
		f.names[n], bit[name] = "__GFP_"+name, n
	}
	for n, name := range stableGFP {
		if name != "" {
			give(name, n)
		}
	}
	for _, name := range laterGFP {
		if t == nil {
			break
		}
		if n, _, ok := t.Enumerator("___GFP_" + name + "_BIT"); ok && n < 64 && f.names[n] == "" {
			give(name, int(n))
		}
	}
	for _, s := range gfpSets {
		set := gfpSet{name: s.name}
		for _, name := range strings.Fields(s.flags) {
			set.mask |= 1 << bit[name]
		}
		f.sets = append(f.sets, set)
	}
	return f
}

// setFlags gives the conversions %gr the flags of a kernel.
func (f *format) setFlags(t Types) {
	for i := range f.parts {
		if f.parts[i].conv == "gr" {
			f.parts[i].gfp = newGFPFlags(t)
		}
	}
}

// text formats flags; bits that have no name are one number.
func (f *gfpFlags) text(flags uint64) string {
	if flags == 0 {
		return "0"
	}
	var parts []string
	for _, s := range f.sets {
		if flags&s.mask == s.mask {
			parts = append(parts, s.name)
			flags &^= s.mask
		}
	}
	var unknown uint64
	for ; flags != 0; flags &= flags - 1 {
		if n := bits.TrailingZeros64(flags); f.names[n] != "" {
			parts = append(parts, f.names[n])
		} else {
			unknown |= 1 << n
		}
	}
	if unknown != 0 {
		parts = append(parts, fmt.Sprintf("%#x", unknown))
	}
	return strings.Join(parts, "|")
}
