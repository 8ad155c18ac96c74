package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"github.com/rogpeppe/go-internal/testscript"
)

// cmdCertificates creates a folder with ca.pem, the server.pem and client.pem that it signed, their keys, and other.pem, a CA that signed
// neither of them:
//
//	certificates tls
func cmdCertificates(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: certificates folder")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	write := func(name, kind string, der []byte) {
		ts.Check(os.WriteFile(dir+"/"+name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	// The CA is valid from a time in the past, because the clocks of guests and hosts differ.
	make := func(name string, number int64, authority *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		ts.Check(err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
		}
		if authority == nil {
			c.IsCA, c.KeyUsage, authority, signer = true, c.KeyUsage|x509.KeyUsageCertSign, c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, signer)
		ts.Check(err)
		write(name+".pem", "CERTIFICATE", der)
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		ts.Check(err)
		write(name+".key", "PRIVATE KEY", secret)
		return c, key
	}
	ca, signer := make("ca", 1, nil, nil)
	make("server", 2, ca, signer)
	make("client", 3, ca, signer)
	make("other", 4, nil, nil)
}

// cmdOperator writes the configuration of a NATS server that trusts users signed by an operator, the credentials of such a user, and
// the credentials of a user signed by another operator:
//
//	operator nats.conf user.creds stranger.creds
func cmdOperator(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: operator conf creds creds")
	}
	pair := func(kp nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		ts.Check(err)
		public, err := kp.PublicKey()
		ts.Check(err)
		return kp, public
	}
	signed := func(creds string) (conf string) {
		operator, o := pair(nkeys.CreateOperator())
		account, a := pair(nkeys.CreateAccount())
		user, u := pair(nkeys.CreateUser())
		ofOperator, err := jwt.NewOperatorClaims(o).Encode(operator)
		ts.Check(err)
		ofAccount, err := jwt.NewAccountClaims(a).Encode(operator)
		ts.Check(err)
		ofUser, err := jwt.NewUserClaims(u).Encode(account)
		ts.Check(err)
		seed, err := user.Seed()
		ts.Check(err)
		text, err := jwt.FormatUserConfig(ofUser, seed)
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(creds), text, 0o600))
		return fmt.Sprintf("operator: %s\nresolver: MEMORY\nresolver_preload: { %s: %s }\n", ofOperator, a, ofAccount)
	}
	conf := signed(args[1])
	signed(args[2])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(conf), 0o600))
}
