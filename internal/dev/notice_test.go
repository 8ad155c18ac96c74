package dev

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNotice: NOTICE has the licences of what is in the programs now.
func TestNotice(t *testing.T) {
	have, err := os.ReadFile("../../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	want, err := notice(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("NOTICE is not what go.mod says; 'make generate' writes it (-want +have):\n%s", diff)
	}
}

// TestLicences: what no sentence of a permissive licence is in has none.
func TestLicences(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"GNU GENERAL PUBLIC LICENSE Version 3", nil},
		{"Apache License\n   Version 2.0, January 2004", []string{"Apache-2.0"}},
		{"Redistribution and use in\nsource and binary forms, with or without", []string{"BSD-2-Clause"}},
		{"Redistribution and use in source and binary forms. My name may not\nbe used to endorse or promote products", []string{"BSD-3-Clause"}},
		{"Apache License, Version 2.0. Permission is hereby granted, free of charge, to any person obtaining a copy", []string{"Apache-2.0", "MIT"}},
	} {
		if got := licences(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, want %v", c.text, got, c.want)
		}
	}
}
