//go:build tools

// Package kueue pins the queueing system that the tests run beside the operator.
package kueue

import _ "sigs.k8s.io/kueue/cmd/kueue"
