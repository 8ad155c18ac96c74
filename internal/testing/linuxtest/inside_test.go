package linuxtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// inside is the name of the tests' own binary in a guest (programs), where it attaches BPF programs and opens perf events.
const inside = "tracer"

// The pipes by which it takes requests, a line each, and answers, a line each.
const (
	insideIn  = "/tmp/tracer.in"
	insideOut = "/tmp/tracer.out"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != inside {
		os.Exit(m.Run())
	}
	if err := serveInside(); err != nil {
		fmt.Fprintln(os.Stderr, inside+":", err)
		os.Exit(1)
	}
}

// attached is a tracer of the guest's own that counts.
type attached interface {
	count() (uint64, error)
	close()
}

// serveInside does what it is asked for, until it is killed. The requests:
//
//	add NAME KIND [ARGUMENT...]   see addProgram; answers "ok", or "error: " and why
//	del NAME                      answers "ok"
//	read                          answers NAME=COUNT of each, with spaces between
//	loads                         see serveLoads.run; answers with the names of its cases
//	open N                        see openMissing; answers with its result
//	run PATH                      see runProgram; answers with its result
//	race N                        see serveLoads.race; answers "ok"
func serveInside() error {
	var files [2]*os.File
	for i, name := range []string{insideIn, insideOut} {
		if err := unix.Mkfifo(name, 0o600); err != nil {
			return err
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0) // both ends, so that none is ever missing
		if err != nil {
			return err
		}
		files[i] = f
	}
	_ = rlimit.RemoveMemlock() // before 5.11
	all := map[string]attached{}
	var loads serveLoads
	for in := bufio.NewScanner(files[0]); in.Scan(); {
		answer := "ok"
		switch w := strings.Fields(in.Text()); {
		case len(w) > 2 && w[0] == "add":
			a, err := addProgram(w[2], w[3:])
			if err != nil {
				answer = "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
				break
			}
			all[w[1]] = a
		case len(w) == 2 && w[0] == "del" && all[w[1]] != nil:
			all[w[1]].close()
			delete(all, w[1])
		case len(w) == 1 && w[0] == "read":
			var out []string
			for name, a := range all {
				n, err := a.count()
				if err != nil {
					out = append(out, "error: "+err.Error())
					break
				}
				out = append(out, fmt.Sprintf("%s=%d", name, n))
			}
			answer = strings.Join(out, " ")
		case len(w) == 1 && w[0] == "loads":
			var err error
			if answer, err = loads.run(); err != nil {
				answer = "error: " + err.Error()
			}
		case len(w) == 2 && w[0] == "open":
			n, err := strconv.Atoi(w[1])
			if answer = fmt.Sprint(openMissing(n)); err != nil {
				answer = "error: " + err.Error()
			}
		case len(w) == 2 && w[0] == "run":
			n, err := runProgram(w[1])
			if answer = fmt.Sprint(n); err != nil {
				answer = "error: " + err.Error()
			}
		case len(w) == 2 && w[0] == "race":
			n, err := strconv.Atoi(w[1])
			if err == nil {
				err = loads.race(n)
			}
			if err != nil {
				answer = "error: " + err.Error()
			}
		default:
			answer = "error: what is " + in.Text()
		}
		if _, err := fmt.Fprintln(files[1], answer); err != nil {
			return err
		}
	}
	return nil
}

// addProgram attaches one:
//
//	fentry, fexit, multi, multiret, kretprobe FUNCTION   BPF programs: trampolines, fprobes, perf's kprobes
//	kprobe FUNCTION OFFSET
//	uprobe PATH FUNCTION
//	names, fentrynames FUNCTION                          a kprobe or trampoline that counts by the string that is its second argument
//	stacks FUNCTION                                      a kprobe that counts by the kernel's stack
//	fmodret FUNCTION                                     a trampoline that decides whether the function runs, and lets it
//	breakpoint ADDRESS                                   perf: debug registers of all CPUs, at an instruction
//	tracepoint GROUP/NAME                                perf
func addProgram(kind string, args []string) (attached, error) {
	if len(args) == 0 {
		return nil, errors.New("no place")
	}
	switch kind {
	case "names", "fentrynames", "stacks":
		return attachCounts(kind, args[0])
	case "breakpoint":
		at, err := strconv.ParseUint(args[0], 0, 64)
		if err != nil {
			return nil, err
		}
		return openPerf(unix.PerfEventAttr{Type: unix.PERF_TYPE_BREAKPOINT, Bp_type: 4 /* HW_BREAKPOINT_X */, Ext1: at, Ext2: 8})
	case "tracepoint":
		b, err := os.ReadFile(tracing + "/events/" + args[0] + "/id")
		if err != nil {
			return nil, err
		}
		id, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return nil, err
		}
		return openPerf(unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id})
	}
	return attachBPF(kind, args)
}

// perf is an event on each CPU.
type perf []int

func openPerf(attr unix.PerfEventAttr) (p perf, err error) {
	attr.Size = unix.PERF_ATTR_SIZE_VER5
	for cpu := range runtime.NumCPU() {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			p.close()
			return nil, err
		}
		p = append(p, fd)
	}
	return p, nil
}

func (p perf) close() {
	for _, fd := range p {
		_ = unix.Close(fd)
	}
}

func (p perf) count() (sum uint64, err error) {
	for _, fd := range p {
		var b [8]byte
		if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
			return 0, fmt.Errorf("read an event: %d bytes, %w", n, err)
		}
		sum += binary.LittleEndian.Uint64(b[:])
	}
	return sum, nil
}

// bpfCounter is a BPF program that counts.
type bpfCounter struct {
	value *ebpf.Map
	more  *ebpf.Map // nil: it needs none
	prog  *ebpf.Program
	link  link.Link
}

func attachBPF(kind string, args []string) (_ attached, err error) {
	b := &bpfCounter{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.value, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return nil, err
	}
	spec := &ebpf.ProgramSpec{License: "GPL", Type: ebpf.Kprobe, Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R1, b.value.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}}
	tracing := map[string]ebpf.AttachType{"fentry": ebpf.AttachTraceFEntry, "fexit": ebpf.AttachTraceFExit, "fmodret": ebpf.AttachModifyReturn}
	at, trampoline := tracing[kind]
	multi := strings.HasPrefix(kind, "multi")
	if trampoline {
		spec.Type, spec.AttachType, spec.AttachTo = ebpf.Tracing, at, args[0]
	} else if multi {
		spec.AttachType = ebpf.AttachTraceKprobeMulti
	}
	if b.prog, err = ebpf.NewProgram(spec); err != nil {
		return nil, err
	}
	switch {
	case trampoline:
		b.link, err = link.AttachTracing(link.TracingOptions{Program: b.prog})
	case kind == "multi":
		b.link, err = link.KprobeMulti(b.prog, link.KprobeMultiOptions{Symbols: args[:1]})
	case kind == "multiret":
		b.link, err = link.KretprobeMulti(b.prog, link.KprobeMultiOptions{Symbols: args[:1]})
	case kind == "kretprobe":
		b.link, err = link.Kretprobe(args[0], b.prog, nil)
	case kind == "uprobe" && len(args) == 2:
		var file *link.Executable
		if file, err = link.OpenExecutable(args[0]); err == nil {
			b.link, err = file.Uprobe(args[1], b.prog, nil)
		}
	case kind == "kprobe" && len(args) == 2:
		var off uint64
		if off, err = strconv.ParseUint(args[1], 0, 64); err == nil {
			b.link, err = link.Kprobe(args[0], b.prog, &link.KprobeOptions{Offset: off})
		}
	default:
		err = fmt.Errorf("no kind %s", kind)
	}
	return b, err
}

// attachCounts attaches a BPF program that does what kprobe:FUNCTION { @[str(arg1)] = count(); } does, or @[kstack] for stacks.
func attachCounts(kind, function string) (_ attached, err error) {
	b := &bpfCounter{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	size := int16(64)
	if kind == "stacks" {
		size = 8
	}
	if b.value, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: uint32(size), ValueSize: 8, MaxEntries: 4096}); err != nil {
		return nil, err
	}
	spec := &ebpf.ProgramSpec{License: "GPL", Type: ebpf.Kprobe}
	arg := int16(13 * 8) // rsi in struct pt_regs
	if kind == "fentrynames" {
		spec.Type, spec.AttachType, spec.AttachTo, arg = ebpf.Tracing, ebpf.AttachTraceFEntry, function, 8
	}
	key := func(r asm.Register) []asm.Instruction {
		return []asm.Instruction{asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, -int32(size))}
	}
	var insns asm.Instructions
	if kind == "stacks" {
		if b.more, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.StackTrace, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 4096}); err != nil {
			return nil, err
		}
		insns = append(insns, asm.LoadMapPtr(asm.R2, b.more.FD()), asm.Mov.Imm(asm.R3, 0), asm.FnGetStackid.Call(), asm.StoreMem(asm.R10, -size, asm.R0, asm.DWord))
	} else {
		insns = append(insns, asm.LoadMem(asm.R6, asm.R1, arg, asm.DWord), asm.Mov.Imm(asm.R1, 0))
		for off := -size; off < 0; off += 8 {
			insns = append(insns, asm.StoreMem(asm.R10, off, asm.R1, asm.DWord))
		}
		insns = append(insns, key(asm.R1)...)
		insns = append(insns, asm.Mov.Imm(asm.R2, int32(size)), asm.Mov.Reg(asm.R3, asm.R6), asm.FnProbeReadUserStr.Call())
	}
	insns = append(insns, asm.LoadMapPtr(asm.R1, b.value.FD()))
	insns = append(insns, key(asm.R2)...)
	insns = append(insns, asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "new"), asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord), asm.Ja.Label("end"),
		asm.Mov.Imm(asm.R1, 1).WithSymbol("new"), asm.StoreMem(asm.R10, -size-8, asm.R1, asm.DWord), asm.LoadMapPtr(asm.R1, b.value.FD()))
	insns = append(insns, key(asm.R2)...)
	insns = append(insns, asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -int32(size)-8), asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	spec.Instructions = insns
	if b.prog, err = ebpf.NewProgram(spec); err != nil {
		return nil, err
	}
	if kind == "fentrynames" {
		b.link, err = link.AttachTracing(link.TracingOptions{Program: b.prog})
	} else {
		b.link, err = link.Kprobe(function, b.prog, nil)
	}
	return b, err
}

func (b *bpfCounter) close() {
	if b.link != nil {
		_ = b.link.Close()
	}
	if b.prog != nil {
		_ = b.prog.Close()
	}
	for _, m := range []*ebpf.Map{b.value, b.more} {
		if m != nil {
			_ = m.Close()
		}
	}
}

func (b *bpfCounter) count() (n uint64, err error) {
	if b.value.Type() != ebpf.PerCPUHash {
		err = b.value.Lookup(uint32(0), &n)
		return n, err
	}
	var key []byte
	var each []uint64
	all := b.value.Iterate()
	for all.Next(&key, &each) {
		for _, v := range each {
			n += v
		}
	}
	return n, all.Err()
}
