package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// hostKernel reads the memory of this host's kernel, by BPF programs and the
// offsets of its BTF. Close it.
type hostKernel struct {
	specs []*btf.Spec // the kvm module's, if it is one, and the kernel's
	peek  *ebpf.Program
	out   *ebpf.Map
	buf   [peekSize]byte
}

// peekSize is how many bytes one run of the peek program reads at most.
const peekSize = 1024

// openHostKernel loads the programs.
func openHostKernel() (*hostKernel, error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fail(CodeHostLayout, err, "this host's kernel has no BTF (CONFIG_DEBUG_INFO_BTF), which says where its VMs are")
	}
	h := &hostKernel{specs: []*btf.Spec{kernel}}
	if kvm, err := btf.LoadKernelModuleSpec("kvm"); err == nil {
		h.specs = append([]*btf.Spec{kvm}, kernel)
	}
	h.out, err = ebpf.NewMap(&ebpf.MapSpec{Name: "gp_peek", Type: ebpf.Array, KeySize: 4, ValueSize: peekSize, MaxEntries: 1})
	if err != nil {
		return nil, bpfError(err)
	}
	// The context is {address, bytes}. The result is probe_read_kernel's.
	h.peek, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gp_peek", Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
			asm.LoadMem(asm.R7, asm.R1, 8, asm.DWord),
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, h.out.FD()),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Reg(asm.R1, asm.R0),
			asm.Mov.Reg(asm.R2, asm.R7),
			asm.JGT.Imm(asm.R2, peekSize, "out"),
			asm.Mov.Reg(asm.R3, asm.R6),
			asm.FnProbeReadKernel.Call(),
			asm.Return().WithSymbol("out"),
		},
	})
	if err != nil {
		h.Close()
		return nil, bpfError(err)
	}
	return h, nil
}

// bpfError returns the error of a program that could not be loaded.
func bpfError(err error) error {
	if refused(err) {
		return fail(CodeNoPermission, err, "reading where this host's kernel has its VMs needs CAP_BPF and CAP_PERFMON: run it as root")
	}
	return fail(CodeHostLayout, err, "this host's kernel does not run the program that reads where its VMs are")
}

// Close unloads the programs.
func (h *hostKernel) Close() {
	if h.peek != nil {
		h.peek.Close()
	}
	h.out.Close()
}

// read reads memory of the kernel.
func (h *hostKernel) read(addr uint64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), peekSize)
		r, err := h.peek.Run(&ebpf.RunOptions{Context: [8]uint64{addr, uint64(n)}})
		if err != nil {
			return bpfError(err)
		}
		if r != 0 {
			return fail(CodeHostLayout, nil, "this host's kernel has no memory at %#x", addr)
		}
		if err := h.out.Lookup(uint32(0), h.buf[:]); err != nil {
			return err
		}
		copy(p, h.buf[:n])
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

// record reads fields of a structure of the kernel.
type record struct {
	h    *hostKernel
	typ  string
	addr uint64
	err  *error // the first error of all records that share it
}

// word returns a field of at most 8 bytes, zero-extended.
func (r record) word(field string) uint64 {
	if *r.err != nil {
		return 0
	}
	off, size, err := r.h.field(r.typ, field)
	if err != nil {
		*r.err = err
		return 0
	}
	var b [8]byte
	if size > 8 {
		size = 8
	}
	*r.err = r.h.read(r.addr+uint64(off), b[:size])
	return binary.LittleEndian.Uint64(b[:])
}

// field returns where a member of a structure is, also one of an unnamed member.
func (h *hostKernel) field(typ, member string) (off, size uint32, err error) {
	for _, spec := range h.specs {
		var s *btf.Struct
		if spec.TypeByName(typ, &s) != nil {
			continue
		}
		if off, t, ok := findMember(s.Members, member); ok {
			n, err := btf.Sizeof(t)
			return off, uint32(n), err
		}
	}
	return 0, 0, fail(CodeHostLayout, nil, "this host's kernel has no %s.%s: its KVM is of a version that is not known here", typ, member)
}

// findMember looks for the member in ms and in unnamed members.
func findMember(ms []btf.Member, name string) (uint32, btf.Type, bool) {
	for _, m := range ms {
		if m.Name == name {
			return m.Offset.Bytes(), m.Type, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if off, t, ok := findMember(inner, name); ok {
			return m.Offset.Bytes() + off, t, true
		}
	}
	return 0, nil, false
}

// files returns the private data of a process's descriptors (struct file).
func (h *hostKernel) files(pid int) (map[int]uint64, error) {
	var err error
	at := func(typ, member string) int16 {
		off, _, e := h.field(typ, member)
		err = errors.Join(err, e)
		return int16(off)
	}
	task, fd, file := at("bpf_iter__task_file", "task"), at("bpf_iter__task_file", "fd"), at("bpf_iter__task_file", "file")
	meta, seq := at("bpf_iter__task_file", "meta"), at("bpf_iter_meta", "seq")
	private, tgid := at("file", "private_data"), at("task_struct", "tgid")
	if err != nil {
		return nil, err
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gp_files", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "task_file", License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R2, asm.R6, task, asm.DWord),
			asm.JEq.Imm(asm.R2, 0, "out"),
			asm.LoadMem(asm.R7, asm.R6, file, asm.DWord),
			asm.JEq.Imm(asm.R7, 0, "out"),
			asm.LoadMem(asm.R3, asm.R2, tgid, asm.Word),
			asm.JNE.Imm(asm.R3, int32(pid), "out"),
			asm.LoadMem(asm.R3, asm.R6, fd, asm.Word),
			asm.StoreMem(asm.R10, -16, asm.R3, asm.DWord),
			asm.LoadMem(asm.R3, asm.R7, private, asm.DWord),
			asm.StoreMem(asm.R10, -8, asm.R3, asm.DWord),
			asm.LoadMem(asm.R1, asm.R6, meta, asm.DWord),
			asm.LoadMem(asm.R1, asm.R1, seq, asm.DWord),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -16),
			asm.Mov.Imm(asm.R3, 16),
			asm.FnSeqWrite.Call(),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, bpfError(err)
	}
	defer p.Close()
	it, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return nil, bpfError(err)
	}
	defer it.Close()
	r, err := it.Open()
	if err != nil {
		return nil, bpfError(err)
	}
	defer r.Close()
	out := map[int]uint64{}
	for {
		var b [16]byte
		switch _, err := io.ReadFull(r, b[:]); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fail(CodeHostLayout, err, "the descriptors of process %d", pid)
		}
		out[int(binary.LittleEndian.Uint64(b[:]))] = binary.LittleEndian.Uint64(b[8:])
	}
}

// slot is a memory slot of a VM (struct kvm_memory_slot): guest memory and where
// the VMM's process has it.
type slot struct {
	id        int
	gpa, size uint64
	hva       uint64
	flags     uint32
}

// maxSlots bounds the slots of a VM (KVM_USER_MEM_SLOTS).
const maxSlots = 32764

// slots returns the memory slots of a VM (struct kvm), without those that KVM has
// for itself.
func (h *hostKernel) slots(kvm uint64) ([]slot, error) {
	nodeAt, _, err := h.field("kvm_memory_slot", "id_node")
	if err != nil {
		return nil, err
	}
	hashAt, hashSize, err := h.field("kvm_memslots", "id_hash")
	if err != nil {
		return nil, err
	}
	nodeSize := uint64(16) // struct hlist_node
	for range 5 {
		var first error
		vm := record{h, "kvm", kvm, &first}
		sets := record{h, "kvm_memslots", vm.word("memslots"), &first} // of address space 0; 1 is that of SMM
		generation := sets.word("generation")
		index := sets.word("node_idx") & 1
		heads := make([]byte, hashSize)
		if first == nil {
			first = h.read(sets.addr+uint64(hashAt), heads)
		}
		var all []slot
		for i := 0; i+8 <= len(heads) && first == nil; i += 8 {
			for n := binary.LittleEndian.Uint64(heads[i:]); n != 0 && first == nil && len(all) <= maxSlots; {
				s := record{h, "kvm_memory_slot", n - uint64(nodeAt) - index*nodeSize, &first}
				one := slot{
					id: int(int16(s.word("id"))), gpa: s.word("base_gfn") << 12, size: s.word("npages") << 12,
					hva: s.word("userspace_addr"), flags: uint32(s.word("flags")),
				}
				if one.id >= 0 && one.id < maxSlots && one.size > 0 {
					all = append(all, one)
				}
				var next [8]byte
				if first == nil {
					first = h.read(n, next[:])
				}
				n = binary.LittleEndian.Uint64(next[:])
			}
		}
		again := record{h, "kvm", kvm, &first}.word("memslots")
		if first == nil && again == sets.addr && sets.word("generation") == generation {
			return all, nil
		}
		if err = first; err == nil {
			err = errors.New("they change all the time")
		}
	}
	return nil, fail(CodeHostLayout, err, "the memory slots of the VM")
}

// thread returns the thread that entered KVM_RUN last for a vCPU (struct
// kvm_vcpu), by its number in the first PID namespace; 0 if it has never run.
func (h *hostKernel) thread(vcpu, kvm uint64) (int, error) {
	var first error
	v := record{h, "kvm_vcpu", vcpu, &first}
	if owner := v.word("kvm"); first == nil && owner != kvm {
		return 0, fail(CodeSeveralVMs, nil, "a vCPU belongs to another VM of the process")
	}
	pid := v.word("pid")
	if first != nil || pid == 0 {
		return 0, first
	}
	at, _, err := h.field("pid", "numbers")
	if err != nil {
		return 0, err
	}
	nr, _, err := h.field("upid", "nr")
	if err != nil {
		return 0, err
	}
	var b [4]byte
	err = h.read(pid+uint64(at)+uint64(nr), b[:])
	return int(binary.LittleEndian.Uint32(b[:])), err
}

// String names a slot.
func (s slot) String() string {
	return strings.TrimSpace(fmt.Sprintf("slot %d: %#x to %#x", s.id, s.gpa, s.gpa+s.size))
}
