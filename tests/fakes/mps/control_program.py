"""A stand-in for nvidia-cuda-mps-control: its command line, files, answers and logs in the foreground.

They are those of NVIDIA's own daemons of the drivers 535, 550 and 555 where there is no card; what only a card brings
about is as NVIDIA's documentation has it. FAKE_MPS_RELEASE is the driver's release. It uses no card. What would come
from clients comes from commands that begin with `test_`:

    test_client UID             a client of this user comes: its server starts, or is there, or it has to wait
    test_fault                  a client has a fatal fault
    test_recover                all clients that it has hit have exited
    test_end_server STATUS      the server ends
    test_hang                   from now on, no command is answered
    test_die STATUS             the daemon ends by itself

`install` writes it under its own name; it must not import anything but the standard library.
"""

import os
import signal
import socket
import sys
import time
from _thread import start_new_thread  # threading takes ten times as long to import, in each question to the daemon

PIPES = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's default
RELEASE = int(os.environ.get("FAKE_MPS_RELEASE", "555"))
NAME = "nvidia-cuda-mps-control"
STARTS_SLOWLY_S = "FAKE_MPS_START_S"
REFUSES = "FAKE_MPS_REFUSES"
"""A file: as long as there is one, the daemon prints its text and ends with status 1."""


def install(directory: str, python: str = sys.executable) -> None:
    """Write the program into a directory, for the PATH of who is to find it; `python` runs it there."""
    os.makedirs(directory, exist_ok=True)
    program = os.path.join(directory, NAME)
    with open(__file__) as source, open(program, "w") as file:
        file.write(f"#!{python} -SEI\n{source.read()}")
    os.chmod(program, 0o700)


class Daemon:
    """The daemon."""

    def __init__(self, multiuser: bool) -> None:
        self.multiuser = multiuser
        self.server = 0  # its process id
        self.user, self.status, self.hangs = 0, "ACTIVE", False
        self.clients: list[int] = []
        self.limits: dict[str, int] = {}  # MiB
        self.threads = "100.0"

    def run(self) -> None:
        socket_file = f"{PIPES}/control"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(socket_file)  # fails where a file was left, as the real one does
        listening.listen(64)
        self.log("control", f"Starting control daemon using socket {socket_file}")
        if RELEASE >= 550:
            with open(f"{PIPES}/{NAME}.pid", "w") as file:
                file.write(f"{os.getpid()}\n")
        while True:
            connection, _ = listening.accept()
            start_new_thread(self.serve, (connection,))

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as stream:
            for line in stream:
                while self.hangs:
                    time.sleep(60)
                answer = self.answer(line.strip())
                self.log("control", f"Accepting connection...\nNEW UI\nCmd:{line.strip()}\n{answer}UI closed")
                stream.write(answer)
                stream.flush()

    def answer(self, line: str) -> str:
        command, *words = line.split() or [""]
        known = getattr(self, command, None)
        if known is None or (RELEASE < 550 and command == "get_server_status"):
            return f'Unknown command "{command}"\n'
        return str(known(*words) or "")

    # NVIDIA's commands.

    def get_server_list(self) -> str:
        return f"{self.server}\n" if self.server else ""

    def get_server_status(self, pid: str) -> str:
        return f"{self.status}\n" if self.server and pid == str(self.server) else f"Server {pid} not found\n"

    def set_default_device_pinned_mem_limit(self, card: str, value: str) -> str:
        if card in os.environ["CUDA_VISIBLE_DEVICES"].split(",") or card.isdigit():
            self.limits[card] = int(value.removesuffix("M"))
        return ""  # also for a card that it does not know

    def get_default_device_pinned_mem_limit(self, card: str) -> str:
        limit = self.limits.get(card, 0)
        return (f"{limit // 1024}G\n" if limit >= 1024 else f"{limit}M\n") if limit else ""

    def set_default_active_thread_percentage(self, percent: str) -> str:
        self.threads = f"{float(percent):.1f}"
        return f"{self.threads}\n"

    def get_default_active_thread_percentage(self) -> str:
        return f"{self.threads}\n"

    def quit(self, *timeout: str) -> str:
        if self.server:
            os.kill(self.server, signal.SIGKILL)
        if RELEASE >= 550:  # the socket stays
            os.unlink(f"{PIPES}/{NAME}.pid")
        os._exit(0)

    # What clients do.

    def test_client(self, uid: str) -> str:
        user = 0 if self.multiuser else int(uid)
        if self.server and self.user != user:
            return "waits\n"
        if not self.server:
            self.user, self.status, self.clients = user, "ACTIVE", []
            self.server = self.start_server()
            self.log("control", f"Starting new server {self.server} for user {user}")
            self.log("control", f"NEW SERVER {self.server}: Ready")
            start_new_thread(self.reap, (self.server,))
        self.clients.append(10_000 + len(self.clients))
        self.log("server", f"Volta MPS: status of client {{{self.clients[-1]}, 1}} is ACTIVE")
        return f"{self.server}\n"

    def test_fault(self) -> None:
        hit = ["Volta MPS: The following clients have a sticky error set:", *map(str, self.clients)]
        told = ["Volta MPS: Server is handling a fatal GPU error.", "Volta MPS: The following devices", "0", *hit]
        self.log("server", "\n".join(told))
        self.status = "FAULT"

    def test_recover(self) -> None:
        self.status, self.clients = "ACTIVE", []
        self.log("server", "Volta MPS: Creating server context on device 0")

    def test_end_server(self, status: str) -> None:
        self.log("control", f"Server {self.server} exited with status {status}")
        server, self.server = self.server, 0
        os.kill(server, signal.SIGKILL)

    def test_hang(self) -> None:
        self.hangs = True

    def test_die(self, status: str) -> None:
        print("the stand-in was told to die", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(int(status))

    def start_server(self) -> int:
        """Start a process that ends with this one, whatever ends it: then nothing of a test is left."""
        read, _ = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.closerange(0, read)
            os.closerange(read + 1, 256)
            os.read(read, 1)
            os._exit(0)
        return pid

    def reap(self, server: int) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
        if server == self.server:  # it was killed by somebody else
            self.server = 0
            self.log("control", f"Server {server} exited with status {-status}")

    def log(self, file: str, text: str) -> None:
        """Print what would be in control.log or server.log of a daemon in the background."""
        now = time.strftime("%Y-%m-%d %H:%M:%S.000")
        who = f"Control {os.getpid()}" if file == "control" or not self.server else f"Other {self.server}"
        print(*(f"[{now} {who}] {line}" for line in text.splitlines()), sep="\n", flush=True)  # noqa: T201


def pass_on() -> int:
    """Pass commands of the input on to the daemon, and print its answers."""
    commands = sys.stdin.read()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"{PIPES}/control")
        except OSError:
            print("Cannot find MPS control daemon process")  # noqa: T201
            return 1
        try:
            connection.sendall(commands.encode())
            connection.shutdown(socket.SHUT_WR)
            while answer := connection.recv(4096):
                sys.stdout.write(answer.decode())
        except OSError:  # it has ended, as `quit` asks for
            return 0
    return 0


def main() -> int:
    options = sys.argv[1:]
    if not options:
        return pass_on()
    if options not in (["-f"], ["-f", "-multiuser-server"][: 2 if RELEASE >= 555 else 1]):
        print("Cannot find MPS control daemon process")  # noqa: T201
        return 1
    refusal = os.environ.get(REFUSES, "/nonexistent")
    if os.path.exists(refusal):
        with open(refusal) as file:
            print(file.read(), file=sys.stderr)  # noqa: T201
        return 1
    time.sleep(float(os.environ.get(STARTS_SLOWLY_S, "0")))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Daemon("-multiuser-server" in options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
