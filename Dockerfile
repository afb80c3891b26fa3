# The images of kong-quota.
#   docker build --target plugin -t kong-quota/plugin .   the static binary alone, for init containers and sidecars
#   docker build --target kong -t kong-quota/kong .       Kong with the plugin (the default)
#   docker buildx build --platform linux/amd64,linux/arm64 …   for several machines
# Equal sources give equal binaries, on every machine.
ARG GO_IMAGE=golang:1.26
ARG KONG_IMAGE=kong:3.9

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS=linux
ARG TARGETARCH=amd64
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} \
    go build -trimpath -buildvcs=false -ldflags="-s -w -buildid=" -o /out/quota .

FROM scratch AS plugin
LABEL org.opencontainers.image.title="kong-quota plugin" \
      org.opencontainers.image.description="The plugin server of kong-quota, and nothing else" \
      org.opencontainers.image.version="0.1.0"
# To verify the certificate of Redis.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The plugin's name is the name of its executable.
COPY --from=build /out/quota /quota
USER 65532:65532
ENTRYPOINT ["/quota"]

FROM ${KONG_IMAGE} AS kong
LABEL org.opencontainers.image.title="kong-quota" \
      org.opencontainers.image.description="Kong Gateway with per-consumer quotas, decided atomically in Redis" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build /out/quota /usr/local/bin/quota
COPY build/quota.env /etc/kong-quota/quota.env
ENV KONG_PLUGINS=bundled,quota \
    KONG_PLUGINSERVER_NAMES=quota \
    KONG_PLUGINSERVER_QUOTA_SOCKET=/usr/local/kong/quota.socket \
    KONG_PLUGINSERVER_QUOTA_QUERY_CMD="/usr/local/bin/quota -kong-prefix /usr/local/kong -dump" \
    KONG_PLUGINSERVER_QUOTA_START_CMD="/usr/local/bin/quota -kong-prefix /usr/local/kong -env-file /etc/kong-quota/quota.env"
USER kong
