package bench

import (
	"bufio"
	"fmt"
	"net"
	"time"
)

// rsp is the client side of the GDB remote serial protocol (GDB manual,
// appendix E), as much as a scripted breakpoint needs.
type rsp struct {
	conn net.Conn
	in   *bufio.Reader
}

// dialRSP connects and turns acknowledgements off, as gdb itself does on a
// reliable transport (E.16, QStartNoAckMode).
func dialRSP(conn net.Conn) (*rsp, error) {
	c := &rsp{conn: conn, in: bufio.NewReader(conn)}
	if err := c.send("QStartNoAckMode"); err != nil {
		return nil, err
	}
	if ack, err := c.in.ReadByte(); err != nil || ack != '+' {
		return nil, fmt.Errorf("gdb stub: no acknowledgement (%q): %v", ack, err)
	}
	if _, err := c.recv(); err != nil {
		return nil, err
	}
	_, err := conn.Write([]byte{'+'})
	return c, err
}

func (c *rsp) send(payload string) error {
	var sum byte
	for i := range len(payload) {
		sum += payload[i]
	}
	c.conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := fmt.Fprintf(c.conn, "$%s#%02x", payload, sum)
	return err
}

func (c *rsp) recv() (string, error) {
	if _, err := c.in.ReadString('$'); err != nil {
		return "", err
	}
	body, err := c.in.ReadString('#')
	if err != nil {
		return "", err
	}
	if _, err := c.in.Discard(2); err != nil {
		return "", err
	}
	return body[:len(body)-1], nil
}

// call sends one packet, and fails if the answer does not begin with want.
func (c *rsp) call(payload, want string) (string, error) {
	if err := c.send(payload); err != nil {
		return "", fmt.Errorf("gdb stub: %s: %w", payload, err)
	}
	got, err := c.recv()
	if err != nil {
		return "", fmt.Errorf("gdb stub: %s: %w", payload, err)
	}
	if len(got) < len(want) || got[:len(want)] != want {
		return "", fmt.Errorf("gdb stub: %s: answer %q, want %q", payload, got, want)
	}
	return got, nil
}
