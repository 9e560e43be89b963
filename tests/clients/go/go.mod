module ister/clients

go 1.24.0

require (
	github.com/danube-messaging/danube-go v0.7.0 // the official client; the tag is commit 93bc37d
	google.golang.org/grpc v1.78.0
)

require (
	golang.org/x/net v0.50.0 // indirect
	golang.org/x/sys v0.41.0 // indirect
	golang.org/x/text v0.34.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260209200024-4cfbd4190f57 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
