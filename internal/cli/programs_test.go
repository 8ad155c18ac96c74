package cli

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// httpMain is the program http, which sends a request unchanged to the socket of
// GUESTPROBE_SOCKET and prints the status and the body.
//
//	exec http POST /v1/probes '{"def":1}'
func httpMain(args []string) int {
	if len(args) < 2 {
		return 2
	}
	body := io.Reader(nil)
	if len(args) > 2 {
		body = strings.NewReader(args[2])
		if n, ok := strings.CutPrefix(args[2], "SIZE="); ok {
			size, err := strconv.Atoi(n)
			if err != nil {
				return 2
			}
			body = strings.NewReader(`{"def":"` + strings.Repeat("x", size) + `"}`)
		}
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", os.Getenv("GUESTPROBE_SOCKET"))
	}}}
	req, err := http.NewRequest(args[0], "http://x"+args[1], body)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	resp, err := c.Do(req)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return 1
	}
	return 0
}

// mkguestMain is the program mkguest, which writes the smallest bootable ELF file:
// one executable segment with the given code at 2 MiB, and one symbol, main, for
// the whole segment.
//
//	exec mkguest boom.elf 0f0b
func mkguestMain(args []string) int {
	if len(args) != 2 {
		return 2
	}
	code, err := hex.DecodeString(args[1])
	if err == nil {
		err = os.WriteFile(args[0], mkguest(code), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// mkguest builds the file according to the System V ABI, chapter on object files.
func mkguest(code []byte) []byte {
	const (
		base   = 0x200000
		ehSize = 64
		phSize = 56
		shSize = 64
		text   = ehSize + phSize
	)
	le := binary.LittleEndian
	names := "\x00.text\x00.symtab\x00.strtab\x00main\x00"
	symtab := text + len(code)
	strtab := symtab + 48
	sections := (strtab + len(names) + 7) &^ 7

	b := make([]byte, sections+4*shSize)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 2)    // ET_EXEC
	le.PutUint16(b[18:], 0x3e) // EM_X86_64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], base+text) // entry
	le.PutUint64(b[32:], ehSize)
	le.PutUint64(b[40:], uint64(sections))
	le.PutUint16(b[52:], ehSize)
	le.PutUint16(b[54:], phSize)
	le.PutUint16(b[56:], 1)
	le.PutUint16(b[58:], shSize)
	le.PutUint16(b[60:], 4)
	le.PutUint16(b[62:], 3)

	ph := b[ehSize:]
	le.PutUint32(ph, 1)     // PT_LOAD
	le.PutUint32(ph[4:], 5) // R+X
	le.PutUint64(ph[16:], base)
	le.PutUint64(ph[24:], base)
	le.PutUint64(ph[32:], uint64(symtab))
	le.PutUint64(ph[40:], uint64(symtab))
	le.PutUint64(ph[48:], 4096)

	copy(b[text:], code)
	sym := b[symtab+24:]
	le.PutUint32(sym, uint32(strings.Index(names, "main")))
	sym[4] = 0x12 // global function
	le.PutUint16(sym[6:], 1)
	le.PutUint64(sym[8:], base+text)
	le.PutUint64(sym[16:], uint64(len(code)))
	copy(b[strtab:], names)

	section := func(i int, name string, typ uint32, flags, addr uint64, off, size int, link, info uint32, entry uint64) {
		sh := b[sections+i*shSize:]
		le.PutUint32(sh, uint32(strings.Index(names, name)))
		le.PutUint32(sh[4:], typ)
		le.PutUint64(sh[8:], flags)
		le.PutUint64(sh[16:], addr)
		le.PutUint64(sh[24:], uint64(off))
		le.PutUint64(sh[32:], uint64(size))
		le.PutUint32(sh[40:], link)
		le.PutUint32(sh[44:], info)
		le.PutUint64(sh[48:], 1)
		le.PutUint64(sh[56:], entry)
	}
	section(1, ".text", 1, 6, base+text, text, len(code), 0, 0, 0)
	section(2, ".symtab", 2, 0, 0, symtab, 48, 3, 1, 24)
	section(3, ".strtab", 3, 0, 0, strtab, len(names), 0, 0, 0)
	return b
}
