package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
)

// shipped are the packages of the programs that users get.
var shipped = []string{"./cmd/guestprobe", "./cmd/guestprobed", "./cmd/guestprobe-fleetd"}

func noticeSpec() command.Spec {
	return command.Spec{
		Use:   "notice DIRECTORY",
		Short: "Write NOTICE: the licenses of all code in the programs",
		Long: `Print the licenses of all modules whose packages are in guestprobe, guestprobed or
guestprobe-fleetd, and of Go's library. DIRECTORY contains go.mod. A license that is
not in the list of known permissive licenses is an error.`,
		Example: `  gpdev notice .`,
		Args:    command.ArgsBetween(1, 1, "say where go.mod is: DIRECTORY"),
		Plain:   true,
		Run: func(ctx context.Context, r *command.Run) error {
			text, err := notice(ctx, r.Args[0])
			if err != nil {
				return err
			}
			return r.Print("%s", text)
		},
	}
}

// dependency is a module of others, or Go's library.
type dependency struct {
	Path, Version, Dir string
	licence            string   // SPDX expression
	texts              []string // of its licence and notice
}

// notice generates the text of NOTICE for the module in dir.
func notice(ctx context.Context, dir string) (string, error) {
	deps, err := dependencies(ctx, dir)
	if err != nil {
		return "", err
	}
	apache, err := os.ReadFile(filepath.Join(dir, "LICENSE"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("guestprobe\nCopyright the guestprobe authors\n\nLicensed under the Apache License, Version 2.0, which is in the file LICENSE.\n\n" +
		"The programs have code of others in them, by the licences that follow.\nThis list is made by 'make generate' from go.mod.\n\n")
	of := map[string][]string{} // whose text this is
	var texts []string
	for _, d := range deps {
		fmt.Fprintf(&b, "%s %s: %s\n", d.Path, d.Version, d.licence)
		for _, t := range d.texts {
			if sameWords(t, string(apache)) {
				continue
			}
			if of[t] == nil {
				texts = append(texts, t)
			}
			of[t] = append(of[t], d.Path)
		}
	}
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n%s:\n\n%s\n", strings.Repeat("-", 78), strings.Join(of[t], ", "), t)
	}
	return b.String(), nil
}

// dependencies lists the modules that the programs are linked with, by path;
// Go's library is the first.
func dependencies(ctx context.Context, dir string) ([]*dependency, error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-json=Module"}, shipped...)...)
	list.Dir = dir
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		var said *exec.ExitError
		if errors.As(err, &said) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(said.Stderr))
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	by := map[string]*dependency{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			Module *struct {
				dependency
				Main bool
			}
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if m := pkg.Module; m != nil && !m.Main {
			by[m.Path] = &m.dependency
		}
	}
	root := exec.CommandContext(ctx, "go", "env", "GOROOT")
	root.Dir = dir
	goroot, err := root.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var deps []*dependency
	for _, d := range by {
		deps = append(deps, d)
	}
	slices.SortFunc(deps, func(a, b *dependency) int { return strings.Compare(a.Path, b.Path) })
	// Without its version, which depends on the builder's toolchain.
	deps = slices.Insert(deps, 0, &dependency{Path: "Go's library", Version: "(go.dev)", Dir: strings.TrimSpace(string(goroot))})
	for _, d := range deps {
		if err := d.read(); err != nil {
			return nil, err
		}
	}
	return deps, nil
}

// read finds the licence and its texts.
func (d *dependency) read() error {
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, _, _ := strings.Cut(strings.ToUpper(e.Name()), ".")
		if !slices.Contains([]string{"LICENSE", "NOTICE", "PATENTS"}, name) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d.Dir, e.Name()))
		if err != nil {
			return err
		}
		text := strings.TrimSpace(strings.ReplaceAll(string(b), "\r", ""))
		// If there is a choice of two licenses we take the permissive one, which comes
		// first.
		if strings.Contains(text, "SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only") {
			text, _, _ = strings.Cut(text, "\nGPL v2.0:\n")
		}
		d.texts = append(d.texts, text)
		if name == "LICENSE" {
			d.licence = strings.Join(licences(text), " AND ")
		}
	}
	if d.licence == "" {
		return fmt.Errorf("%s %s: no licence that is known here in %s", d.Path, d.Version, d.Dir)
	}
	return nil
}

// licences returns the SPDX names of the permissive licenses in a text, which it
// recognizes by characteristic sentences.
func licences(text string) (names []string) {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	has := func(s string) bool { return strings.Contains(text, strings.ToLower(s)) }
	if has("Apache License Version 2.0") || has("Apache License, Version 2.0") {
		names = append(names, "Apache-2.0")
	}
	switch {
	case !has("Redistribution and use in source and binary forms"):
	case has("be used to endorse or promote"):
		names = append(names, "BSD-3-Clause")
	default:
		names = append(names, "BSD-2-Clause")
	}
	if has("Permission to use, copy, modify, and distribute this software for any purpose with or without fee") {
		names = append(names, "ISC")
	}
	if has("Permission is hereby granted, free of charge, to any person obtaining a copy") {
		names = append(names, "MIT")
	}
	return names
}

// sameWords reports whether texts differ only in white space and in the part of
// the Apache License after its terms, which its users fill in.
func sameWords(a, b string) bool {
	terms := func(s string) string {
		s, _, _ = strings.Cut(strings.Join(strings.Fields(s), " "), "END OF TERMS AND CONDITIONS")
		return s
	}
	return terms(a) == terms(b)
}
