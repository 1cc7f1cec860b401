# A node image of kind, from Debian's packages and our own builds. Context: a folder that tools/kind_lab.py makes, with
# kind's own files for its base image (files/), the programs (bin/) and what differs here (ours/).
ARG ROOT
FROM $ROOT
COPY files/ /
COPY bin/kubernetes/ /usr/bin/
COPY bin/runtime/ /usr/local/bin/
COPY ours/ /
# systemd runs what a node needs, and nothing of a machine's own; the rest is what kind does to its base image.
RUN rm -f /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service \
      /lib/systemd/system/multi-user.target.wants/* /lib/systemd/system/local-fs.target.wants/* \
      /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl* \
      /lib/systemd/system/basic.target.wants/* /etc/systemd/system/*.wants/* \
 && ln -sf /usr/lib/systemd/systemd /sbin/init \
 && echo "ReadKMsg=no" >> /etc/systemd/journald.conf \
 && systemctl enable kubelet.service containerd.service undo-mount-hacks.service && systemctl mask systemd-binfmt.service \
 && mkdir -p /etc/kubernetes/manifests /opt/cni/bin \
 && cp /usr/lib/cni/host-local /usr/lib/cni/loopback /usr/lib/cni/ptp /usr/lib/cni/portmap /usr/lib/cni/bridge /opt/cni/bin/ \
 && ctr oci spec | jq 'del(.process.rlimits) | .hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}]' \
      > /etc/containerd/cri-base.json
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
