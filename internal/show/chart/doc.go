// Package chart draws counts: sparklines, histograms and heat maps, as text for terminals of any sort and as SVG.
package chart
