package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

func testMaps(t testing.TB, mem Memory, specs ...MapSpec) []*Map {
	t.Helper()
	var maps []*Map
	for _, s := range specs {
		m, err := NewMap(s, 2, mem)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		maps = append(maps, m)
	}
	return maps
}

var (
	arraySpec  = MapSpec{Name: "a", Kind: Array, KeySize: 4, ValueSize: 16, MaxEntries: 2}
	perCPUSpec = MapSpec{Name: "p", Kind: PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 2}
	hashSpec   = MapSpec{Name: "h", Kind: Hash, KeySize: 4, ValueSize: 8, MaxEntries: 4}
	ringSpec   = MapSpec{Name: "r", Kind: RingBuf, MaxEntries: MinRingSize}
)

func TestCheck(t *testing.T) {
	exit := Insn{Op: OpExitK}
	maps := testMaps(t, Heap{}, arraySpec, hashSpec)
	chain := func(n int) (p []Insn) { // n functions, each calling the next
		for range n - 1 {
			p = append(p, Insn{Op: OpCallK, Src: CallLocal, Imm: 1}, exit)
		}
		return append(p, exit)
	}
	long := make([]Insn, MaxSlots+1)
	for i := range long {
		long[i] = exit
	}
	for _, tt := range []struct {
		name string
		prog []Insn
		at   int
		want string // "" = accepted
	}{
		{"exit", []Insn{exit}, 0, ""},
		{"empty", nil, -1, "no instructions"},
		{"longest", long[1:], 0, ""},
		{"too long", long, -1, "more than 65536"},
		{"register 10 read", []Insn{movX(R0, R10), exit}, 0, ""},
		{"register 10 written", []Insn{movK(R10, 0), exit}, 0, "read-only"},
		{"register 11", []Insn{movK(11, 0), exit}, 0, "no register r11"},
		{"source 15", []Insn{movX(R0, 15), exit}, 0, "no register r15"},
		{"load into r10", []Insn{{Op: ClassLDX | ModeMEM | SizeB, Dst: R10, Src: R1}, exit}, 0, "read-only"},
		{"fetch into r10", []Insn{{Op: ClassSTX | ModeATOMIC | SizeDW, Dst: R1, Src: R10, Imm: AtomicXchg}, exit}, 0, "read-only"},
		{"imm64 into r10", append(wideImmediate(R10, ImmConst, 1), exit), 0, "read-only"},
		{"immediate with register", []Insn{{Op: ClassALU64 | OpAdd | SrcX, Imm: 1}, exit}, 0, "not zero"},
		{"register with immediate", []Insn{{Op: ClassALU64 | OpAdd, Src: R1}, exit}, 0, "not zero"},
		{"offset of add", []Insn{{Op: ClassALU64 | OpAdd, Off: 1}, exit}, 0, "not zero"},
		{"variant of div", []Insn{{Op: ClassALU64 | OpDiv, Off: 2}, exit}, 0, "no variant 2"},
		{"variant of mov", []Insn{{Op: ClassALU64 | OpMov | SrcX, Off: 24}, exit}, 0, "no variant 24"},
		{"movsx of 32 bits to 32", []Insn{{Op: ClassALU | OpMov | SrcX, Off: 32}, exit}, 0, "no variant 32"},
		{"movsx of an immediate", []Insn{{Op: ClassALU64 | OpMov, Off: 8}, exit}, 0, "no variant 8"},
		{"operation 0xe", []Insn{{Op: ClassALU64 | 0xe0}, exit}, 0, "unknown opcode"},
		{"swap of 24 bits", []Insn{{Op: ClassALU64 | OpEnd, Imm: 24}, exit}, 0, "no byte swap of 24"},
		{"bswap with source bit", []Insn{{Op: ClassALU64 | OpEnd | SrcX, Imm: 16}, exit}, 0, "unknown opcode"},
		{"neg with source", []Insn{{Op: ClassALU64 | OpNeg, Src: R1}, exit}, 0, "not zero"},
		{"wide memsx", []Insn{{Op: ClassLDX | ModeMEMSX | SizeDW}, exit}, 0, "unknown opcode"},
		{"mode 5", []Insn{{Op: ClassLDX | 0xa0}, exit}, 0, "unknown opcode"},
		{"packet abs", []Insn{{Op: ClassLD | ModeABS | SizeW}, exit}, 0, "packet conformance group"},
		{"packet ind", []Insn{{Op: ClassLD | ModeIND | SizeB}, exit}, 0, "packet conformance group"},
		{"narrow imm", []Insn{{Op: ClassLD | SizeW}, exit}, 0, "unknown opcode"},
		{"imm64 cut", []Insn{exit, {Op: OpLoadImm64}}, 1, "missing second half"},
		{"imm64 kind 3", append(wideImmediate(R0, ImmVarAddr, 0), exit), 0, "platform variables"},
		{"imm64 kind 4", append(wideImmediate(R0, ImmCodeAddr, 0), exit), 0, "address of a function to slot 1, into the middle"},
		{"imm64 kind 7", append(wideImmediate(R0, 7, 0), exit), 0, "no kind 7"},
		{"map 1", append(wideImmediate(R0, ImmMapFD, 1), exit), 0, ""},
		{"map 2", append(wideImmediate(R0, ImmMapIdx, 2), exit), 0, "no map 2"},
		{"map with offset", append(wideImmediate(R0, ImmMapFD, 1<<32), exit), 0, "not zero"},
		{"map value", append(wideImmediate(R0, ImmMapValue, 15<<32), exit), 0, ""},
		{"map value behind", append(wideImmediate(R0, ImmMapValue, 16<<32), exit), 0, "outside the 16 bytes"},
		{"value of a hash", append(wideImmediate(R0, ImmMapValIdx, 1), exit), 0, "no fixed address"},
		{"atomic byte", []Insn{{Op: ClassSTX | ModeATOMIC | SizeB, Dst: R1}, exit}, 0, "unknown opcode"},
		{"atomic operation", []Insn{{Op: ClassSTX | ModeATOMIC | SizeW, Dst: R1, Imm: 0x10}, exit}, 0, "no atomic operation 0x10"},
		{"load acquire", []Insn{{Op: ClassSTX | ModeATOMIC | SizeW, Dst: R1, Imm: 0x100}, exit}, 0, "no atomic operation 0x100"},
		{"stack lowest", []Insn{{Op: ClassST | ModeMEM | SizeDW, Dst: R10, Off: -512}, exit}, 0, ""},
		{"stack below", []Insn{{Op: ClassST | ModeMEM | SizeB, Dst: R10, Off: -513}, exit}, 0, "outside the frame"},
		{"stack above", []Insn{{Op: ClassLDX | ModeMEM | SizeDW, Src: R10, Off: -7}, exit}, 0, "outside the frame"},
		{"atomic on odd stack", []Insn{{Op: ClassSTX | ModeATOMIC | SizeDW, Dst: R10, Off: -12}, exit}, 0, "not aligned"},
		{"fall off", []Insn{movK(R0, 0)}, 0, "runs off"},
		{"fall off after imm64", wideImmediate(R0, ImmConst, 0), 0, "runs off"},
		{"fall off by a condition", []Insn{{Op: ClassJMP | OpJEQ, Off: -1}}, 0, "runs off"},
		{"loop", []Insn{{Op: OpGoto, Off: -1}}, 0, ""},
		{"jump to the end", []Insn{{Op: OpGoto}, exit}, 0, ""},
		{"jump past the end", []Insn{{Op: OpGoto, Off: 1}, exit}, 0, "outside the program"},
		{"jump before the start", []Insn{{Op: OpGoto, Off: -2}, exit}, 0, "outside the program"},
		{"long jump past the end", []Insn{{Op: OpGotoL, Imm: 1 << 30}, exit}, 0, "outside the program"},
		{"long jump with offset", []Insn{{Op: OpGotoL, Off: 1}, exit}, 0, "not zero"},
		{"jump into imm64", append([]Insn{{Op: ClassJMP | OpJEQ, Off: 1}}, append(wideImmediate(R0, 0, 0), exit)...), 0, "middle of a 64-bit immediate"},
		{"call 32", []Insn{{Op: ClassJMP32 | OpCall}, exit}, 0, "unknown opcode"},
		{"call by register", []Insn{{Op: OpCallK | SrcX}, exit}, 0, "unknown opcode"},
		{"call of a helper", []Insn{callK(HelperGetCPU), exit}, 0, ""},
		{"call of no helper", []Insn{callK(9), exit}, 0, "unknown helper skb_store_bytes (9)"},
		{"call of no helper at all", []Insn{callK(99999), exit}, 0, "unknown helper 99999"},
		{"call by BTF", []Insn{{Op: OpCallK, Src: CallBTF}, exit}, 0, "BTF ID"},
		{"call kind", []Insn{{Op: OpCallK, Src: 3}, exit}, 0, "no kind 3"},
		{"call out", []Insn{{Op: OpCallK, Src: CallLocal, Imm: 5}, exit}, 0, "outside the program"},
		{"helper for probes", []Insn{callK(HelperGetFuncArg), exit}, 0, "needs the registers"},
		{"jump into another function", []Insn{{Op: OpCallK, Src: CallLocal, Imm: 2}, {Op: OpGoto, Off: 1}, exit, exit, exit}, 1, "into another function"},
		{"falls into a function", []Insn{{Op: OpCallK, Src: CallLocal, Imm: 0}, exit}, 0, "runs off"},
		{"recursion", []Insn{{Op: OpCallK, Src: CallLocal, Imm: -1}, exit}, 0, "calls itself"},
		{"8 frames", chain(8), 0, ""},
		{"9 frames", chain(9), 0, "deeper than 8"},
		{"second half alone", []Insn{{}, exit}, 0, "unknown opcode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			insns, err := Decode(wireOf(tt.prog))
			if err == nil {
				_, err = New(Spec{Insns: insns, Maps: maps})
			}
			if tt.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one about %q", err, tt.want)
			}
			if ce := (*CheckError)(nil); errors.As(err, &ce) && ce.Index != tt.at {
				t.Errorf("%v, want instruction %d", err, tt.at)
			}
		})
	}
}

// TestCheckInsns has what only instructions can say that were not decoded.
func TestCheckInsns(t *testing.T) {
	exit := asm.Return()
	long := make(asm.Instructions, MaxSlots/2+1)
	for i := range long {
		long[i] = asm.LoadImm(asm.R0, 0, asm.DWord)
	}
	for _, tt := range []struct {
		name string
		prog asm.Instructions
		at   int
		want string // "" = accepted
	}{
		{"too long", long, -1, "at most 65536"},
		{"immediate of 33 bits", asm.Instructions{{OpCode: asm.Mov.Op(asm.ImmSource), Constant: 1 << 31}, exit}, 0, "32 bits"},
		{"invalid opcode", asm.Instructions{{OpCode: asm.InvalidOpCode}, exit}, 0, "unknown opcode"},
		{"jump over an imm64", asm.Instructions{asm.JEq.Imm(asm.R1, 0, "out"), asm.LoadImm(asm.R0, 1, asm.DWord), exit.WithSymbol("out")}, 0, ""},
		{"jump back", asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("again"), asm.JSGT.Reg32(asm.R0, asm.R1, "again"), exit}, 0, ""},
		{"long jump", asm.Instructions{asm.LongJump("out"), exit.WithSymbol("out")}, 0, ""},
		{"call", asm.Instructions{asm.Call.Label("f"), exit, asm.Mov.Imm(asm.R0, 0).WithSymbol("f"), exit}, 0, ""},
		{"no label", asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Ja.Label("out"), exit}, 1, `no label "out"`},
		{"label of a move", asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithReference("x"), exit.WithSymbol("x")}, 0, "not a jump or a call"},
		{"too far", append(append(asm.Instructions{asm.JEq.Imm(asm.R1, 0, "out")}, long[:1<<14]...), exit.WithSymbol("out")), 0, `too far is label "out"`},
	} {
		before := fmt.Sprint(tt.prog)
		_, err := New(Spec{Insns: tt.prog})
		if fmt.Sprint(tt.prog) != before {
			t.Errorf("%s: the program was changed", tt.name)
		}
		ce := (*CheckError)(nil)
		if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &ce) || ce.Index != tt.at || !strings.Contains(ce.Reason, tt.want)) {
			t.Errorf("%s: %v, want instruction %d and %q", tt.name, err, tt.at, tt.want)
		}
	}
}

// TestCheckOverride: what a kind of probe cannot do is refused for it alone.
func TestCheckOverride(t *testing.T) {
	prog := read(t, callK(HelperOverrideReturn), Insn{Op: OpExitK})
	for kind, ok := range map[Kind]bool{Raw: false, Kprobe: true, Kretprobe: false} {
		if _, err := New(Spec{Kind: kind, Insns: prog}); (err == nil) != ok {
			t.Errorf("%v: %v, want accepted %v", kind, err, ok)
		}
	}
}

// encode returns the bytes of a program.
func encode(t testing.TB, prog asm.Instructions) string {
	t.Helper()
	var b bytes.Buffer
	if err := prog.Marshal(&b, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name string
		code string
		want error
	}{
		{"nothing", "", ErrEmpty},
		{"half", "95 00 00 00", ErrTruncated},
		{"one", "95 00 00 00 00 00 00 00", nil},
		{"imm64 cut", "18 00 00 00 00 00 00 00", ErrMalformed},
		{"imm64", "18 01 00 00 78 56 34 12 00 00 00 00 f0 de bc 9a", nil},
		{"imm64 with bits in its half", "18 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00", ErrMalformed},
		{"longest", strings.Repeat("95 00 00 00 00 00 00 00 ", MaxSlots), nil},
		{"too long", strings.Repeat("95 00 00 00 00 00 00 00 ", MaxSlots+1), ErrTooLong},
	} {
		b, err := parseHex(tt.code)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := Decode(b)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err == nil && encode(t, prog) != string(b) {
			t.Errorf("%s: encoded again it is % x", tt.name, encode(t, prog))
		}
	}
	b, _ := parseHex("18 21 00 00 78 56 34 12 00 00 00 00 f0 de bc 9a")
	if prog, err := Decode(b); err != nil || len(prog) != 1 || fmt.Sprint(prog[0]) != "LoadMapValue dst: r1, fd: 305419896 off: 2596069104" {
		t.Errorf("decoded %+v, %v", prog, err)
	}
	if _, err := Exec("95 0", "", Interpret); err == nil {
		t.Error("an odd number of digits was accepted")
	}
}

// FuzzRun: any bytes decode, check and run without a panic or a hang in the
// interpreter, and a program encodes to the same bytes.
func FuzzRun(f *testing.F) {
	for _, src := range []string{countProgram, benchLoop, "lddw r1, 0x1000000000000\nldxb r0, [r1+0]\nexit", recordProgram} {
		f.Add([]byte(encode(f, mustAssemble(f, src))), []byte{1, 2, 3})
	}
	f.Fuzz(func(t *testing.T, code, mem []byte) {
		insns, err := Decode(code)
		if err != nil {
			return
		}
		_ = fmt.Sprint(insns)
		maps := testMaps(t, Heap{}, arraySpec, hashSpec, perCPUSpec, ringSpec)
		for _, kind := range []Kind{Raw, Kprobe, Kretprobe} {
			p, err := New(Spec{Kind: kind, Insns: insns, Maps: maps, Budget: 10000})
			if err != nil {
				continue
			}
			if again := encode(t, insns); again != string(code) {
				t.Fatalf("encoded again: % x, was % x", again, code)
			}
			for _, w := range p.Warnings() {
				if w.Index < 0 || w.Index >= len(p.slots) || w.What == "" {
					t.Fatalf("a warning %+v", w)
				}
			}
			ctx := alignedBytes(max(len(mem), RegsSize))
			copy(ctx, mem)
			if _, err := NewVM(p, 1).Run(ctx, &fakeEnv{}); err != nil {
				_ = err.Error()
			}
			if _, _, err := Compile(p, Layout{}); !errors.Is(err, ErrMapNotShared) {
				t.Fatalf("compiled for maps that the guest does not see: %v", err)
			}
		}
	})
}
