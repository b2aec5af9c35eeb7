# Compiles where the builder runs, for the platform that was asked for.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /oakum .

# One static binary. The API server's certificate authority comes with the pod's service account.
FROM scratch
COPY --from=build /oakum /oakum
USER 65532:65532
ENTRYPOINT ["/oakum"]
