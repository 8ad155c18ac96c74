package linuxtest

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/session"
)

// formFiles returns programs of guest/debuginfo's tests, with their parts, as files of a guest.
func formFiles(t *testing.T, names map[string]string) fstest.MapFS {
	t.Helper()
	f, err := os.Open("../../../guest/debuginfo/testdata/forms.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := fstest.MapFS{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if to := names[h.Name]; to != "" {
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			out[to] = &fstest.MapFile{Data: b}
		}
	}
	if len(out) != len(names) {
		t.Fatalf("%d files of %d", len(out), len(names))
	}
	return out
}

// lineInFile returns the build ID of a program and the offset in it of the code of line 11 of a.c.
func lineInFile(t *testing.T, b []byte) string {
	t.Helper()
	const addr = 0x400033 // in the text, which the linker is told to put at 0x400000
	f, err := elf.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if addr-p.Vaddr < p.Filesz {
			return fmt.Sprintf("%s 0x%02x", f.BuildID(), addr-p.Vaddr+p.Off)
		}
	}
	t.Fatalf("no code at %#x", addr)
	return ""
}

// TestFileParameters: scripts read parameters of functions of the guest's programs, by the debug information in the guest's memory, with
// the programs' own types, and run at lines of their source.
func TestFileParameters(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var k *linux.Kernel
			files := formFiles(t, map[string]string{"gcc5/prog": "whole", "split5/prog": "split", "split5/a.dwo": "a.dwo", "split5/b.dwo": "b.dwo"})
			g := boot(t, dir, "sh /fileargs.sh", func(c *machine.Config) {
				var err error
				if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, files); err != nil {
					t.Fatal(err)
				}
				k = c.Linux.Kernel
			})
			s := g.newSession(k)
			if err := g.Resume(); err != nil {
				t.Fatal(err)
			}
			g.await("READY")
			for _, prog := range []string{"/whole", "/split"} {
				text := strings.ReplaceAll(`uprobe:PROG:work1 /args.l->head->color == GREEN/ { @n = sum(args.n); @label[args.l.head.label] = sum(((struct list *)arg0)->count); @args[sizeof(struct list), args.l->quad.d] = count(); }
					uprobe:PROG@a.c:11 { @line = count(); @[ustack(build_id, 1)] = count(); @stack[ustack(1), ustack(perf, 1), usym(reg("ip"))] = count(); }
					uprobe:PROG:work1+7 { @inlined[ustack(1), ustack(perf, 1)] = count(); }
					uretprobe:PROG:work1 { let $l: struct list * = args.l; @back = sum(args.n + $l->head->weight); }`, "PROG", prog)
				sc, err := s.StartScript(text, session.ScriptOptions{})
				if err != nil {
					t.Errorf("%s: %v", prog, err)
					g.Type("go\n")
					g.await("RC ")
					continue
				}
				g.Type("go\n")
				g.await("RC ") // the program ends with an instruction that it may not execute
				var out strings.Builder
				if err := sc.Stop(&out); err != nil {
					t.Error(err)
				}
				for _, want := range []string{"@[\n" + lineInFile(t, files[prog[1:]].Data) + "\n]: 100\n", "@n: 4950\n", "@label[item]: 100\n", "@args[56, 4]: 100\n", "@line: 100\n",
					"@stack[\n        work1+35@/src/a.c:11\n, \n\t1033 work1+35 (" + prog + ")\n, work1]: 100\n",
					"@inlined[\n        [inlined] heavy@/src/shared.h:6\n        work1+7@/src/a.c:9\n, \n\t1017 heavy (inlined)\n\t1017 work1+7 (" + prog + ")\n]: 100\n", "@back: 5450\n"} {
					if !strings.Contains(out.String(), want) {
						t.Errorf("%s: the script prints %q, which has no %q", prog, out.String(), want)
					}
				}
			}
		})
	}
}
