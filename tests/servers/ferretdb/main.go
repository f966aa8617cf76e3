// Command ferretdb serves the MongoDB protocol on one address, its data in SQLite files in one
// folder. It is for tests: it ends when its standard input does, so that no end of the tests,
// however sudden, leaves it behind.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve on; port 0 takes a free one")
	data := flag.String("data", "", "existing folder for the SQLite files")
	tls := flag.String("tls", "", "folder with tls.crt and tls.key, to serve by TLS only")
	flag.Parse()

	listener := ferretdb.ListenerConfig{TCP: *listen}
	if *tls != "" {
		listener = ferretdb.ListenerConfig{
			TLS:         *listen,
			TLSCertFile: filepath.Join(*tls, "tls.crt"),
			TLSKeyFile:  filepath.Join(*tls, "tls.key"),
		}
	}
	db, err := ferretdb.New(&ferretdb.Config{
		Listener:  listener,
		Handler:   "sqlite",
		SQLiteURL: "file:" + *data + "/",
	})
	if err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	// It knows its port only after it has begun to listen, which is when this returns.
	go func() { fmt.Println("serving", db.MongoDBURI()) }()

	if err := db.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
