package gdb

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
)

// registers returns all registers of the vCPU that packets refer to. Reading the
// ones that are not available at once from KVM takes time, so a series of p
// packets reads them once.
func (s *session) registers() (*Registers, error) {
	if s.known != s.cpu {
		s.known = noVCPU
		if err := s.t.Registers(s.cpu, &s.cache, true); err != nil {
			return nil, err
		}
		s.known = s.cpu
	}
	return &s.cache, nil
}

// noVCPU is the vCPU number that means no vCPU.
const noVCPU = -1

// readAll is g. It returns only the registers that are available at once: a
// debugger asks for the others with p when it needs them (GDB manual, E.2), and
// most stops do not need them.
func (s *session) readAll(context.Context, []byte) (string, error) {
	if err := s.t.Registers(s.cpu, &s.where, false); err != nil {
		return "", err
	}
	s.raw = s.raw[:0]
	for i := range s.regs[:numAtHand] {
		s.raw = s.regs[i].get(s.raw, &s.where)
	}
	n := len(s.raw)
	s.raw = hex.AppendEncode(s.raw, s.raw)
	return string(s.raw[n:]), nil
}

// writeAll is G, with the registers of g, or more of them.
func (s *session) writeAll(_ context.Context, data []byte) (string, error) {
	r, err := s.registers()
	if err != nil {
		return "", err
	}
	for i := range s.regs {
		if len(data) == 0 && i >= numAtHand {
			break
		}
		g := &s.regs[i]
		b := make([]byte, g.size)
		if len(data) < 2*g.size || !unhex(b, data[:2*g.size]) || !g.set(b, r) {
			return "", errBad
		}
		data = data[2*g.size:]
	}
	if len(data) > 0 {
		return "", errBad
	}
	s.known = noVCPU
	return "OK", s.t.SetRegisters(s.cpu, r)
}

// register returns the register with a number, and the number.
func (s *session) register(b []byte) (*register, int, error) {
	n, ok := number(b)
	if !ok {
		return nil, 0, errBad
	}
	if n >= uint64(len(s.regs)) {
		return nil, 0, fmt.Errorf("there is no register %#x: the last is %#x", n, len(s.regs)-1)
	}
	return &s.regs[n], int(n), nil
}

func (s *session) readOne(_ context.Context, b []byte) (string, error) {
	g, n, err := s.register(b)
	if err != nil {
		return "", err
	}
	r := &s.where
	if n < numAtHand {
		err = s.t.Registers(s.cpu, r, false)
	} else {
		r, err = s.registers()
	}
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(g.get(nil, r)), nil
}

func (s *session) writeOne(_ context.Context, data []byte) (string, error) {
	num, value, _ := bytes.Cut(data, []byte("="))
	g, _, err := s.register(num)
	if err != nil {
		return "", err
	}
	r, err := s.registers()
	if err != nil {
		return "", err
	}
	b := make([]byte, g.size)
	if !unhex(b, value) || !g.set(b, r) {
		return "", errBad
	}
	s.known = noVCPU
	return "OK", s.t.SetRegisters(s.cpu, r)
}

const pageSize = 4096

// readMemory answers with as many bytes as can be read.
func (s *session) readMemory(_ context.Context, b []byte) (string, error) {
	var addr, n uint64
	if !numbers(b, &addr, &n) {
		return "", errBad
	}
	p := make([]byte, min(n, packetSize/2))
	err := s.t.Read(s.cpu, addr, p)
	if err == nil {
		return hex.EncodeToString(p), nil
	}
	got := uint64(0)
	for got < uint64(len(p)) {
		end := min(uint64(len(p)), got+pageSize-(addr+got)%pageSize)
		if s.t.Read(s.cpu, addr+got, p[got:end]) != nil {
			break
		}
		got = end
	}
	if got == 0 {
		return "", err
	}
	return hex.EncodeToString(p[:got]), nil
}

// writeMemory writes the data that follows "ADDRESS,LENGTH:".
func (s *session) writeMemory(data []byte, decode func(dst, src []byte) bool) (string, error) {
	head, body, ok := bytes.Cut(data, []byte(":"))
	var addr, n uint64
	if !ok || !numbers(head, &addr, &n) || n > packetSize {
		return "", errBad
	}
	p := make([]byte, n)
	if !decode(p, body) {
		return "", errBad
	}
	if n == 0 { // the debugger tests whether the packet is supported
		return "OK", nil
	}
	return "OK", s.t.Write(s.cpu, addr, p)
}

func (s *session) writeHex(_ context.Context, data []byte) (string, error) {
	return s.writeMemory(data, unhex)
}

func (s *session) writeBinary(_ context.Context, data []byte) (string, error) {
	return s.writeMemory(data, func(dst, src []byte) bool { return copy(dst, src) == len(src) && len(src) == len(dst) })
}

// longest is how much of the guest's memory one packet may make us read.
const longest = 256 << 20

// scan reads n bytes from addr on in blocks, each with keep bytes of the one before in front.
func (s *session) scan(addr, n uint64, keep int, f func(at uint64, b []byte) (more bool)) error {
	const block = 64 << 10
	if n > longest {
		return fmt.Errorf("%d bytes are more than the %d that one request may read", n, longest)
	}
	var b []byte
	for done := uint64(0); done < n; {
		now := min(n-done, block)
		kept := min(keep, len(b))
		copy(b, b[len(b)-kept:])
		b = append(b[:kept], make([]byte, now)...)
		if err := s.t.Read(s.cpu, addr+done, b[kept:]); err != nil {
			return err
		}
		if !f(addr+done-uint64(kept), b) {
			return nil
		}
		done += now
	}
	return nil
}

// search looks for a pattern: "ADDRESS;LENGTH;PATTERN".
func (s *session) search(_ context.Context, data []byte) (string, error) {
	parts := bytes.SplitN(data, []byte(";"), 3)
	if len(parts) != 3 || len(parts[2]) == 0 {
		return "", errBad
	}
	addr, ok := number(parts[0])
	n, ok2 := number(parts[1])
	if !ok || !ok2 {
		return "", errBad
	}
	answer := "0"
	err := s.scan(addr, n, len(parts[2])-1, func(at uint64, b []byte) bool {
		i := bytes.Index(b, parts[2])
		if i >= 0 {
			answer = fmt.Sprintf("1,%x", at+uint64(i))
		}
		return i < 0
	})
	return answer, err
}

// checksum returns the checksum for compare-sections over "ADDRESS,LENGTH".
func (s *session) checksum(_ context.Context, data []byte) (string, error) {
	var addr, n uint64
	if !numbers(data, &addr, &n) {
		return "", errBad
	}
	crc := ^uint32(0)
	err := s.scan(addr, n, 0, func(_ uint64, b []byte) bool {
		for _, c := range b {
			crc = crc<<8 ^ crcTable[byte(crc>>24)^c]
		}
		return true
	})
	return fmt.Sprintf("C%x", crc), err
}

// crcTable is the table of the packet's polynomial (GDB manual, E.5), most
// significant bit first.
var crcTable = func() (t [256]uint32) {
	for i := range t {
		c := uint32(i) << 24
		for range 8 {
			carry := c >> 31
			c = c<<1 ^ carry*0x04c11db7
		}
		t[i] = c
	}
	return t
}()
