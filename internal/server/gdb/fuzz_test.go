package gdb

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// wire is a connection whose other end has sent all that it will.
type wire struct {
	io.Reader
	bytes.Buffer
}

func (w *wire) Read(p []byte) (int, error)       { return w.Reader.Read(p) }
func (w *wire) Close() error                     { return nil }
func (w *wire) LocalAddr() net.Addr              { return nil }
func (w *wire) RemoteAddr() net.Addr             { return nil }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// FuzzServe: whatever a debugger sends, the session ends with it, the guest is left as it was
// found, and all that was answered are packets.
func FuzzServe(f *testing.F) {
	for _, s := range []string{"$?#3f", "$g#67", "+$vCont;s:1#00", "$m10000,40#00", "$Z0,10004,1#00", "$qXfer:features:read:target.xml:0,fff#00",
		"$vFile:open:2f6775657374,0,0#00", "$qSearch:memory:10000;100;ab#00", "\x03", "-", "$X10000,2:}\x03a#00", "$qRcmd,68656c70#00", "$qSymbol:0:41#00",
		// Sequences: stops, what changes under them, and interrupts where they may come.
		"$Z0,10004,1#00$c#00$g#67$P10=0000010000000000#00$c#00$z0,10004,1#00$D#44",
		"$vCont;r10000,10040:1#00\x03$Hg2#00$vCont;s:2;c#00$p10#00\x03\x03$Z2,10100,8#00$vCont;c#00\x03$k#6b",
		"$qXfer:threads:read::0,10#00$Hg2#00$vFile:open:2f6775657374,0,0#00$vFile:pread:0,3,1#00$s#73$vFile:close:0#00$qXfer:threads:read::10,fff#00"} {
		f.Add([]byte("$QStartNoAckMode#b0" + s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		target := newFake()
		target.program = Program{File: func() []byte { return []byte("file") }, Landmark: "_text", At: 1}
		// Checksums are made right, so that what is in packets is read.
		var sent []byte
		r := bufio.NewReader(bytes.NewReader(in))
		for {
			e, err := readEvent(r)
			if err != nil {
				break
			}
			switch {
			case e.interrupt:
				sent = append(sent, interrupt)
			case e.nak:
				sent = append(sent, '-')
			case e.data != nil:
				sent = appendPacket(sent, e.data)
			}
		}
		w := &wire{Reader: bytes.NewReader(append(sent, in...))}
		if err := Serve(context.Background(), w, target, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if target.attached {
			t.Fatal("still attached")
		}
		out := bufio.NewReader(&w.Buffer)
		for {
			e, err := readEvent(out)
			if err == io.EOF {
				break
			}
			if err != nil || e.damaged || len(e.data) > packetSize {
				t.Fatalf("answered %q, damaged %t: %v", e.data, e.damaged, err)
			}
		}
	})
}
