package fleet

import (
	"encoding/binary"
	"errors"
)

// packet is one message of a connection. Bytes of either direction are numbered from 0 on.
type packet struct {
	flags uint8
	seq   uint64 // of the first byte of data
	ack   uint64 // all bytes before this one have arrived
	limit uint64 // bytes before this one may be sent
	data  []byte
}

// Flags of packets.
const (
	flagFin   = 1 << iota // nothing follows data
	flagReset             // the connection has ended
	flagAsk               // an answer is requested
)

// packetHead is the length of a packet without its data: version, flags, and
// three numbers.
const packetHead = 2 + 3*8

// packetVersion is the first byte of a packet.
const packetVersion = 1

var errPacket = errors.New("not a packet of a fleet's connection")

func (p *packet) encode() []byte {
	b := make([]byte, packetHead, packetHead+len(p.data))
	b[0], b[1] = packetVersion, p.flags
	binary.LittleEndian.PutUint64(b[2:], p.seq)
	binary.LittleEndian.PutUint64(b[10:], p.ack)
	binary.LittleEndian.PutUint64(b[18:], p.limit)
	return append(b, p.data...)
}

func decodePacket(b []byte) (p packet, err error) {
	if len(b) < packetHead || b[0] != packetVersion {
		return p, errPacket
	}
	return packet{
		flags: b[1],
		seq:   binary.LittleEndian.Uint64(b[2:]), ack: binary.LittleEndian.Uint64(b[10:]), limit: binary.LittleEndian.Uint64(b[18:]),
		data: b[packetHead:],
	}, nil
}
