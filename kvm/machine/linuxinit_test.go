package machine

import (
	"encoding/binary"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestLinuxInitcalls: kretprobes that are there before the first instruction follow functions
// which return before the engine has memory, and each initcall, as the kernel itself names them.
func TestLinuxInitcalls(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "dmesg | sed -n 's/.*initcall \\(.*\\) returned.*/initcall \\1/p' >/dev/hvc0; echo end; read x", func(c *Config) {
				c.VCPUs = 2
				c.Cmdline = "initcall_debug log_buf_len=1M " + c.Cmdline
			})
			// Hits come from several vCPUs, one after the other but for modules.
			var mu sync.Mutex
			var began, ended []string
			early := map[string]int{}
			follow := func(symbol string, entry func(*probe.Context) int, ret func(*probe.Context)) *probe.Kretprobe {
				r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: symbol}, DataSize: 8, Entry: entry, Return: ret}
				if err := m.Engine().Register(r); err != nil {
					t.Fatal(err)
				}
				return r
			}
			for _, symbol := range []string{"setup_arch", "sched_init", "console_init"} {
				follow(symbol, nil, func(c *probe.Context) {
					if s, ok := m.Image().Find(c.Ret - 1); ok && m.Capabilities(false).NoExec != "" {
						early[symbol+" from "+s.Name]++
					}
				})
			}
			// A module has no name yet when it starts, unless it was seen before.
			name := func(fn uint64) string {
				if m.Image().(*linux.View).Module(guest.GVA(fn)) != "" {
					return ""
				}
				s, _ := m.Image().Find(guest.GVA(fn))
				return s.Name
			}
			calls := follow("do_one_initcall", func(c *probe.Context) int {
				binary.LittleEndian.PutUint64(c.Data, c.Regs.RDI)
				mu.Lock()
				defer mu.Unlock()
				began = append(began, name(c.Regs.RDI))
				return 0
			}, func(c *probe.Context) {
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, name(binary.LittleEndian.Uint64(c.Data)))
			})
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			await(t, m, "end")
			// console_init calls those of its table itself.
			said := regexp.MustCompile(`initcall ([\w.]+)\+0x\S+( \[\w+\])?$`)
			var want []string
			for _, l := range lines(m) {
				if f := said.FindStringSubmatch(l); f == nil {
				} else if f[2] == "" {
					want = append(want, f[1])
				} else {
					want = append(want, "")
				}
			}
			lo, errLo := m.Image().Lookup("__con_initcall_start")
			hi, errHi := m.Image().Lookup("__con_initcall_end")
			consoles := int(hi.Addr-lo.Addr) / 4 // offsets (CONFIG_HAVE_ARCH_PREL32_RELOCATIONS)
			if errLo != nil || errHi != nil || consoles >= len(want) {
				t.Fatalf("%d initcalls of consoles, of %d: %v %v", consoles, len(want), errLo, errHi)
			}
			want = want[consoles:]
			if i, _ := m.Engine().Info(&calls.Kprobe); len(want) < 100 || i.Stats.Hits != uint64(len(want)) || i.Stats.Returns != uint64(len(want)) || i.Stats.Missed+i.Stats.Abandoned != 0 || i.InUse != 0 {
				t.Errorf("the kernel says that it has made %d initcalls, the probe %+v, %d in use", len(want), i.Stats, i.InUse)
			}
			for _, got := range [][]string{began, ended} {
				for i := range max(len(got), len(want)) {
					if i >= len(got) || i >= len(want) || got[i] != want[i] {
						t.Errorf("initcall %d is %q, the kernel says %q", i, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
						break
					}
				}
			}
			for _, want := range []string{"setup_arch from start_kernel", "sched_init from start_kernel", "console_init from start_kernel"} {
				if early[want] != 1 {
					t.Errorf("%s: %d returns; all: %v", want, early[want], early)
				}
			}
			t.Logf("%d initcalls; %+v", len(want), m.Stats())
		})
	}
}
