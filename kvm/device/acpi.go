package device

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// TablesAddr is the address of the ACPI tables: in the BIOS read-only memory
// area, which a guest searches for them (ACPI 6.5, 5.2.5.1). The guest must not
// use tablesSize bytes from there on as RAM.
const (
	TablesAddr guest.GPA = 0xe0000
	tablesSize           = 0x20000
)

// Where the interrupt controllers of a PC are.
const (
	localAPIC = 0xfee00000
	ioAPIC    = 0xfec00000
)

// sciIRQ is the line of the system control interrupt.
const sciIRQ = 9

// Tables returns the ACPI tables, for TablesAddr.
func (p *Platform) Tables() []byte {
	t := tables{at: uint64(TablesAddr)}
	var r rsdp
	t.put(r, 8)
	facs := t.put(facs{Signature: [4]byte([]byte("FACS")), Length: 64, Version: 2}, 64)
	dsdt := t.table("DSDT", 2, p.dsdt())
	fadt := t.table("FACP", 6, newFADT(uint32(facs), dsdt))
	madt := t.table("APIC", 3, madt(p.cfg.VCPUs))
	r = rsdp{Signature: [8]byte([]byte("RSD PTR ")), OEM: oem, Revision: 2, Length: uint32(binary.Size(r)),
		XSDT: t.table("XSDT", 1, struct{ FADT, MADT uint64 }{fadt, madt})}
	b := encode(r)
	b[8] = checksum(b[:20]) // of the first version's fields
	b[32] = checksum(b)
	copy(t.b, b)
	if len(t.b) > tablesSize {
		panic(fmt.Sprintf("BUG: %d bytes of ACPI tables", len(t.b)))
	}
	return t.b
}

var oem = [6]byte([]byte("GPROBE"))

// tables are ACPI tables in the making.
type tables struct {
	at uint64 // of b
	b  []byte
}

// put adds a structure at a multiple of align, and returns its address.
func (t *tables) put(x any, align int) uint64 {
	for len(t.b)%align != 0 {
		t.b = append(t.b, 0)
	}
	at := t.at + uint64(len(t.b))
	t.b = append(t.b, encode(x)...)
	return at
}

// table adds a table: a header, followed by this body (ACPI 6.5, 5.2.6).
func (t *tables) table(signature string, revision byte, body any) uint64 {
	rest := encode(body)
	h := header{Signature: [4]byte([]byte(signature)), Revision: revision, OEM: oem, Table: [8]byte([]byte("GUESTPRB")),
		Version: 1, Creator: [4]byte([]byte("GPRB")), CreatorVersion: 1}
	h.Length = uint32(binary.Size(h) + len(rest))
	h.Checksum = checksum(append(encode(h), rest...))
	return t.put(append(encode(h), rest...), 16)
}

func encode(x any) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, x); err != nil {
		panic("BUG: " + err.Error())
	}
	return b.Bytes()
}

// checksum returns the byte that makes the sum of b's bytes and itself zero.
func checksum(b []byte) byte {
	var s byte
	for _, x := range b {
		s -= x
	}
	return s
}

// rsdp is the root pointer (5.2.5.3).
type rsdp struct {
	Signature [8]byte
	Checksum  byte
	OEM       [6]byte
	Revision  byte
	RSDT      uint32
	Length    uint32
	XSDT      uint64
	Extended  byte
	_         [3]byte
}

// header is that of a table (5.2.6).
type header struct {
	Signature          [4]byte
	Length             uint32
	Revision, Checksum byte
	OEM                [6]byte
	Table              [8]byte
	Version            uint32
	Creator            [4]byte
	CreatorVersion     uint32
}

// facs is the firmware's control structure (5.2.10).
type facs struct {
	Signature         [4]byte
	Length            uint32
	Hardware, Waking  uint32
	GlobalLock, Flags uint32
	XWaking           uint64
	Version           byte
	_                 [3]byte
	OSPMFlags         uint32
	_                 [24]byte
}

// register is an address of a register (5.2.3.2).
type register struct {
	Space, Width, Offset, Access byte
	Address                      uint64
}

// portRegister returns the register at a port, with the size of accesses to it.
func portRegister(at uint64, width, access byte) register {
	const systemIO = 1
	return register{Space: systemIO, Width: width * 8, Access: access, Address: at}
}

// fadt is the fixed description (5.2.9), after its header.
type fadt struct {
	FACS, DSDT                                 uint32
	_, Profile                                 byte
	SCI                                        uint16
	SMI                                        uint32
	Enable, Disable, S4, PState                byte
	PM1aEvent, PM1bEvent, PM1aCtl, PM1bCtl     uint32
	PM2Ctl, Timer, GPE0, GPE1                  uint32
	EventLen, CtlLen, Ctl2Len, TimerLen        byte
	GPE0Len, GPE1Len, GPE1Base, CState         byte
	C2Latency, C3Latency, Flush, Stride        uint16
	DutyOffset, DutyWidth, Day, Month, Century byte
	Boot                                       uint16
	_                                          byte
	Flags                                      uint32
	Reset                                      register
	ResetValue                                 byte
	ARMBoot                                    uint16
	Minor                                      byte
	XFACS, XDSDT                               uint64
	XPM1aEvent, XPM1bEvent, XPM1aCtl, XPM1bCtl register
	XPM2Ctl, XTimer, XGPE0, XGPE1              register
	SleepControl, SleepStatus                  register
	Hypervisor                                 [8]byte
}

func newFADT(facs uint32, dsdt uint64) fadt {
	// Flags (table 5.10) and legacy devices (table 5.11).
	const wbinvd, c1, noPowerButton, noSleepButton, timer32, resetRegister = 1 << 0, 1 << 2, 1 << 4, 1 << 5, 1 << 8, 1 << 10
	const legacyDevices, noVGA, noMSI = 1 << 0, 1 << 2, 1 << 3
	const noC2, noC3 = 101, 1001 // microseconds from which on the states are not supported
	return fadt{
		FACS: facs, DSDT: uint32(dsdt), XDSDT: dsdt,
		SCI:       sciIRQ,
		PM1aEvent: pmPort, EventLen: 4, XPM1aEvent: portRegister(pmPort, 4, 2),
		PM1aCtl: pmPort + pmControl, CtlLen: 2, XPM1aCtl: portRegister(pmPort+pmControl, 2, 2),
		Timer: pmPort + pmTimer, TimerLen: 4, XTimer: portRegister(pmPort+pmTimer, 4, 3),
		C2Latency: noC2, C3Latency: noC3,
		Century: clockCentury,
		Boot:    legacyDevices | noVGA | noMSI,
		Flags:   wbinvd | c1 | noPowerButton | noSleepButton | timer32 | resetRegister,
		Reset:   portRegister(resetPort, 1, 1), ResetValue: resetValue,
		Minor: 5,
	}
}

// madt describes the interrupt controllers (5.2.12): local APICs with the vCPUs' numbers, NMI on their
// input 1, the I/O APIC, and the one line of the first 16 that is not as on the ISA bus.
func madt(vcpus int) []byte {
	const enabled, pc8259 = 1, 1
	const highLevel = 1 | 3<<2 // active high, level triggered
	le := binary.LittleEndian
	b := le.AppendUint32(nil, localAPIC)
	b = le.AppendUint32(b, pc8259)
	for i := range vcpus {
		b = le.AppendUint32(append(b, 0, 8, byte(i), byte(i)), enabled)
	}
	b = le.AppendUint32(append(b, 1, 12, 0, 0), ioAPIC)
	b = le.AppendUint32(b, 0) // its first line
	b = le.AppendUint32(append(b, 2, 10, 0, sciIRQ), sciIRQ)
	b = le.AppendUint16(b, highLevel)
	return append(b, 4, 6, 0xff, 0, 0, 1)
}

// dsdt describes devices that a guest cannot detect by itself: the sleep type of
// S5, the serial port, the clock, and virtio devices, under the identifier that
// Linux knows (drivers/virtio/virtio_mmio.c).
func (p *Platform) dsdt() []byte {
	devices := [][]byte{
		amlDev("COM1",
			amlNamed("_HID", amlEISA("PNP0501")), amlNamed("_UID", amlInt(1)),
			amlNamed("_CRS", amlResources(resPorts(serialPort, serialPorts), resIRQ(serialIRQ)))),
		amlDev("RTC_",
			amlNamed("_HID", amlEISA("PNP0B00")),
			amlNamed("_CRS", amlResources(resPorts(clockIndex, 2)))),
	}
	for i, v := range p.virtio {
		devices = append(devices, amlDev(fmt.Sprintf("VIO%X", i),
			amlNamed("_HID", amlText("LNRO0005")), amlNamed("_UID", amlInt(uint32(i))),
			amlNamed("_CRS", amlResources(resMemory(virtioAddr+uint32(i)*virtioSpace, virtioSpace), resInterrupt(v.irq.n)))))
	}
	off := amlInt(pmOff)
	return append(amlNamed("_S5_", amlList(off, off, amlInt(0), amlInt(0))), amlScoped("\\_SB_", devices...)...)
}
