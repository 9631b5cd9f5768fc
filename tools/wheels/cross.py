"""A C and C++ compiler for systems as old as glibc 2.28 on any processor, and Pleat's libraries built by it.

The compiler is zig's, whose wheel brings the C library's headers and symbols of every version. Its C++
library is another one than torch's, so the headers of GCC's, and what to link with, come from the
distribution: libstdc++-12-dev, for another processor its cross package.
"""

import os
import pathlib
import platform
import shlex
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GLIBC = "2.28"
GCC = "12"
OURS = HERE / "libstdcxx"
# libstdc++'s headers ask this header whether a program has one thread. The variable behind it is as new as
# glibc 2.32: here the answer is no, which is always right.
SINGLE_THREADED = "#pragma once\nstatic const char __libc_single_threaded = 0;\n"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


class Missing(Exception):
    """What cannot be done, and what to do, in one line."""


def run(*command, **more):
    """Standard output of a program; Missing with the end of what it said."""
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True, **more)
    except OSError as problem:
        raise Missing("%s: %s" % (command[0], problem.strerror)) from None
    if done.returncode:
        raise Missing("%s ended with %d:\n%s" % (" ".join(map(str, command)), done.returncode, done.stdout[-4000:]))
    return done.stdout


class Cross:
    """The compiler for one processor. `zig` is the program, `folder` its own folder for what it makes."""

    def __init__(self, zig, processor, folder):
        self.zig = pathlib.Path(zig)
        self.processor = processor
        self.folder = pathlib.Path(folder)
        self.triple = processor + "-linux-gnu"
        self.bin = self.folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        for name, words in (("cc", ["cc", "-target", "%s.%s" % (self.triple, GLIBC)]), ("ar", ["ar"]),
                            ("ranlib", ["ranlib"])):
            self.script(name, words)

    def script(self, name, words):
        path = self.bin / name
        path.write_text('#!/bin/sh\nexec %s "$@"\n' % shlex.join([str(self.zig), *words]))
        path.chmod(0o755)

    @property
    def cc(self):
        return self.bin / "cc"

    # ---- C++ ----

    def distribution(self):
        """(folders of GCC's C++ headers, folder of its shared libraries); Missing names the package."""
        version, triple = GCC, self.triple
        if self.processor == platform.machine():
            package = "libstdc++-%s-dev" % version
            headers = [pathlib.Path("/usr/include/c++", version), pathlib.Path("/usr/include", triple, "c++", version)]
            libraries = pathlib.Path("/usr/lib", triple)
        else:
            package = "libstdc++-%s-dev-%s-cross" % (version, DEBIAN[self.processor])
            headers = [pathlib.Path("/usr", triple, "include/c++", version),
                       pathlib.Path("/usr", triple, "include/c++", version, triple)]
            libraries = pathlib.Path("/usr", triple, "lib")
        for needed in (*headers, libraries / "libstdc++.so.6", libraries / "libgcc_s.so.1"):
            if not needed.exists():
                raise Missing("%s is not there: apt-get install %s" % (needed, package))
        return headers, libraries

    def compile(self, source, output, *options):
        """An object file of C++."""
        headers, _ = self.distribution()
        single = self.folder / "single" / "sys" / "single_threaded.h"
        single.parent.mkdir(parents=True, exist_ok=True)
        single.write_text(SINGLE_THREADED)
        folders = ["-I%s" % folder for folder in (OURS, single.parents[1], *headers)]
        run(self.cc, *folders, "-O2", "-g0", "-fPIC", "-fvisibility=hidden", *options, "-c", source, "-o", output)

    def link(self, output, objects, beside, *options):
        """A shared object without a symbol table, of objects and shared objects `beside`, all of which it asks for
        when it is loaded. What is undefined in it then must be in one of them."""
        _, libraries = self.distribution()
        missing = self.folder / "missing.o"
        if not missing.exists():
            self.compile(OURS / "missing.cpp", missing, "-std=c++17")
        run(self.cc, "-shared", "-Wl,-s", "-Wl,-z,now", "-Wl,--no-as-needed", *objects, missing, *beside,
            libraries / "libstdc++.so.6", libraries / "libgcc_s.so.1", *options, "-o", output)

    def placeholder(self, name):
        """A shared object without contents that stands for one which is there at run time."""
        path = self.folder / "placeholders" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            source = path.with_suffix(".c")
            source.write_text("typedef int nothing;\n")
            run(self.cc, "-shared", "-nostdlib", source, "-Wl,-soname," + name, "-o", path)
        return path

    # ---- libraries that Pleat's own holds ----

    def cmake(self, source, build, *options, targets=()):
        toolchain = self.folder / "toolchain.cmake"
        toolchain.write_text("\n".join((
            "set(CMAKE_SYSTEM_NAME Linux)", "set(CMAKE_SYSTEM_PROCESSOR %s)" % self.processor,
            "set(CMAKE_C_COMPILER %s)" % self.cc, "set(CMAKE_C_COMPILER_TARGET %s)" % self.triple,
            "set(CMAKE_CXX_COMPILER %s)" % self.cc, "set(CMAKE_AR %s)" % (self.bin / "ar"),
            "set(CMAKE_RANLIB %s)" % (self.bin / "ranlib"), "set(CMAKE_FIND_ROOT_PATH %s)" % self.folder,
            "set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)", "set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)", "")))
        run("cmake", "-G", "Ninja", "-S", source, "-B", build, "-DCMAKE_TOOLCHAIN_FILE=%s" % toolchain,
            "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON", *options)
        run("cmake", "--build", build, *(["--target", *targets] if targets else []))

    def library(self, name, sources, build):
        """Builds one of the libraries into this folder, once."""
        done = self.folder / (name + ".built")
        if done.exists():
            return
        build(sources / name, self.folder / "build" / name)
        done.write_text("")

    def libraries(self, sources):
        self.library("zlib", sources, self.zlib)
        self.library("msgpack-c", sources, self.msgpack)
        self.library("jemalloc", sources, self.jemalloc)

    def install(self, *files):
        for file, place in files:
            target = self.folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(pathlib.Path(file).read_bytes())

    def zlib(self, source, build):
        """In a copy: its configure writes beside the sources."""
        shutil.copytree(source, build, dirs_exist_ok=True)
        environment = dict(os.environ, CC=str(self.cc), AR=str(self.bin / "ar"), RANLIB=str(self.bin / "ranlib"),
                           CFLAGS="-O3 -fPIC -fvisibility=hidden", CHOST=self.triple)
        run("./configure", "--static", cwd=build, env=environment)
        run("make", "libz.a", cwd=build)
        self.install((build / "libz.a", "lib/libz.a"), (build / "zlib.h", "include/zlib.h"),
                     (build / "zconf.h", "include/zconf.h"))

    def msgpack(self, source, build):
        self.cmake(source, build, "-DMSGPACK_ENABLE_SHARED=OFF", "-DMSGPACK_ENABLE_CXX=OFF", "-DMSGPACK_BUILD_TESTS=OFF",
                   "-DMSGPACK_BUILD_EXAMPLES=OFF", "-DMSGPACK_GEN_COVERAGE=OFF",
                   "-DCMAKE_C_FLAGS=-fvisibility=hidden",
                   "-DCMAKE_INSTALL_PREFIX=%s" % self.folder, "-DCMAKE_INSTALL_LIBDIR=lib", targets=["install"])

    def jemalloc(self, source, build):
        """Configured as tools/setup does it."""
        build.mkdir(parents=True, exist_ok=True)
        page = ["--with-lg-page=16"] if self.processor == "aarch64" else []
        environment = dict(os.environ, CC=str(self.cc), AR=str(self.bin / "ar"), RANLIB=str(self.bin / "ranlib"),
                           EXTRA_CFLAGS="-O2 -fvisibility=hidden -g0")
        run(source / "configure", "--host=" + self.triple, "--prefix=%s" % self.folder,
            "--with-jemalloc-prefix=pleat_je_", "--with-private-namespace=pleat_je_private_",
            "--disable-initial-exec-tls", "--disable-cxx", "--disable-shared", "--enable-static", "--disable-doc", *page,
            cwd=build, env=environment)
        # zig's linker has no --exclude-libs, by which Pleat's own build keeps these functions inside.
        for header in (build / "include/jemalloc").glob("jemalloc*.h"):
            header.write_text(header.read_text().replace('JEMALLOC_ATTR(visibility("default"))', ""))
        run("make", "lib/libjemalloc_pic.a", cwd=build)
        run("make", "install_include", cwd=build)
        self.install((build / "lib/libjemalloc_pic.a", "lib/libjemalloc_pic.a"))

    def pleat(self):
        """Builds libpleat and the command; returns the build's folder, which is this tree's: another one shares the
        cache, and may be of another day."""
        build = ROOT / "build" / ("wheel-" + self.processor)
        self.cmake(ROOT, build, "-DPLEAT_JEMALLOC=%s" % self.folder, "-DBUILD_TESTING=OFF",
                   "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-s", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-s",
                   "-DCMAKE_REQUIRE_FIND_PACKAGE_PleatDygraphs=ON",  # without it no page is drawn
                   targets=["pleat", "pleat_command", "pleat_no_gpu", "pleat_nccl"])
        return build
