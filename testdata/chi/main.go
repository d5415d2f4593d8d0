// Command chi is the least that a service with this router is: what nsop's start is compared with.
package main

import (
	"io"
	"net/http"
	"os"

	"github.com/go-chi/chi/v5"
)

func main() {
	r := chi.NewRouter()
	r.Get("/health", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	if err := http.ListenAndServe(":"+os.Getenv("PORT"), r); err != nil {
		os.Exit(1)
	}
}
