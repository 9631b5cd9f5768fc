"""Finds or builds shim.cpp's shared object for the installed torch, and loads it.

torch's C++ interface is another one in every version. A wheel of Pleat brings a shim for each release, and
one is taken where the headers that it was built with are the installed ones. Else it is compiled: it lies
in a cache folder under a name made of everything that decides what it must be; what only makes it, a
compiler and CUDA's headers, is looked for when there is none of that name. Where it cannot be made, a
wheel has something less for every torch (see _hooks.py).
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time

from . import UnavailableError, _parts, _stderr
from ._parts import PACKAGE

SOURCES = ["shim.cpp", *sorted(path.name for path in PACKAGE.glob("*.h"))]

OLDEST = (2, 4)  # of torch's releases those from here on are served
# What torch's headers declare differs between versions: name -> (header, pattern). shim.cpp gets
# PLEAT_HAS_<name> for each pattern that is found. Of the headers only CONFIG may not be there.
ALLOCATOR = "c10/cuda/CUDACachingAllocator.h"
CONFIG = "c10/cuda/CUDAAllocatorConfig.h"
PLUGGABLE = "torch/csrc/cuda/CUDAPluggableAllocator.h"
FEATURES = {
    "ALLOCATE_WITH_ADDRESS": (ALLOCATOR, r"virtual DataPtr allocateWithAddress\("),
    "ANNOTATE_MEMORY": (ALLOCATOR, r"virtual void annotateMemory\("),
    "ANNOTATION": (ALLOCATOR, r"virtual void recordAnnotation\(\s*const std::vector"),
    "CLEAR_HISTORY": (ALLOCATOR, r"virtual void recordHistory\([^;]*bool clearHistory"),
    "COMPILE_CONTEXT": (ALLOCATOR, r"virtual void pushCompileContext\("),
    "CONTEXT_FOR_POINTER": (ALLOCATOR, r"getContextForPointer\(\s*const void\s*\*"),
    "CREATE_POOL": (
        ALLOCATOR,
        r"virtual void createOrIncrefPool\([^;{]*std::shared_ptr<CUDAAllocator>",
    ),
    "EMPTY_POOL": (PLUGGABLE, r"void emptyCache\([^;]*MempoolId_t"),
    "ENABLE": (ALLOCATOR, r"virtual void enable\(bool"),
    "ENSURE_POOL_FROM": (ALLOCATOR, r"virtual void ensureExistsAndIncrefPool\("),
    "EXPANDABLE_SIZES": (ALLOCATOR, r"virtual std::vector<StreamSegmentSize> getExpandable"),
    "HISTORY_ENABLED": (ALLOCATOR, r"virtual bool isHistoryEnabled\("),
    "MARK_CAPTURE": (ALLOCATOR, r"virtual void markCaptureBegin\("),
    "MEMPOOL_CONTEXT": (ALLOCATOR, r"static MemPool\s?\* ?getActiveMemPool\("),
    "MEMORY_FRACTION": (ALLOCATOR, r"virtual double getMemoryFraction\("),
    "METADATA_SUPPORTED": (ALLOCATOR, r"virtual bool supportsUserMetadata\("),
    "NO_SPLIT": (ALLOCATOR, r"virtual void setNoSplit\("),
    "POOL_USE_COUNT": (ALLOCATOR, r"virtual int getPoolUseCount\("),
    "PROCESS_FRACTION": (CONFIG, r"static double per_process_memory_fraction\("),
    "REJECTION_OBSERVER": (ALLOCATOR, r"virtual void attachOomRejectionObserver\("),
    "SHARE_HANDLE": (ALLOCATOR, r"virtual ShareableHandle shareIpcHandle\("),
    "SKIP_ACTIONS": (ALLOCATOR, r"virtual void recordHistory\([^;]*skip_actions"),
    "SNAPSHOT_POOL": (ALLOCATOR, r"virtual SnapshotInfo snapshot\(\s*MempoolId_t"),
    "SNAPSHOT_TRACES": (ALLOCATOR, r"virtual SnapshotInfo snapshot\([^;]*bool include_traces"),
    "USER_METADATA": (ALLOCATOR, r"virtual std::string getUserMetadata\("),
    "USE_ON_OOM": (ALLOCATOR, r"virtual void setUseOnOOM\("),
    "USE_ON_OOM_FLAG": (ALLOCATOR, r"virtual void setUseOnOOM\([^;{]*bool"),
}

SHIMS = PACKAGE / "shims"  # a wheel's, for each release of torch
UNUSED_SECONDS = 90 * 86400  # a shim that nobody loaded for so long is another torch's or another Pleat's
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def features(include):
    """Names of FEATURES that the headers under a folder declare."""
    texts = {}
    found = []
    for name, (header, pattern) in sorted(FEATURES.items()):
        if header not in texts:
            path = pathlib.Path(include, header)
            there = path.is_file()
            if not there and header != CONFIG:
                raise UnavailableError(
                    "pleat: torch's header %s is missing: Pleat needs a torch built with CUDA, "
                    "%d.%d or later, with its headers (the wheels have them)" % (path, *OLDEST)
                )
            texts[header] = path.read_text(encoding="utf-8", errors="replace") if there else ""
        if re.search(pattern, texts[header]):
            found.append(name)
    return found


def compiler():
    """The C++ compiler's command: $CXX, which may have arguments ("ccache g++"), or the first there is."""
    asked = os.environ.get("CXX")
    choices = [["c++"], ["g++"], ["clang++"]]
    if asked:
        choices = [[asked]]
        with contextlib.suppress(ValueError):  # a quotation that does not end
            choices.append(shlex.split(asked))
    for words in choices:
        path = shutil.which(words[0]) if words else None
        if path:
            return [path, *words[1:]]
    raise UnavailableError(
        "pleat: no C++ compiler: %s; install one (g++ or clang++) or name it in $CXX"
        % ("$CXX is %r, which is no program" % asked if asked else "c++, g++ and clang++ are not there")
    )


def cuda_folders():
    """Folders that may be a CUDA toolkit or what the wheels bring of one, the likeliest first."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield pathlib.Path(os.environ[name])
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield pathlib.Path(nvcc).resolve().parent.parent
    for entry in sys.path:
        for package in ("cu13", "cu12", "cuda_runtime"):
            yield pathlib.Path(entry or ".", "nvidia", package)
    yield pathlib.Path("/usr/local/cuda")
    yield from sorted(pathlib.Path("/usr/local").glob("cuda-*"), reverse=True)


def cuda_includes():
    """Folders with CUDA's headers. What torch's wheels bring has the runtime's alone, and the wheel with
    those that they include puts them beside them or, of CUDA 12, into a folder of its own."""
    tried = []
    halves = []
    for folder in cuda_folders():
        for include in (folder / "include", folder / "targets" / "x86_64-linux" / "include"):
            if not (include / "cuda_runtime_api.h").is_file():
                continue
            for other in (include, folder.parent / "cuda_nvcc" / "include"):
                if (other / "crt" / "host_config.h").is_file():
                    return [include] if other == include else [include, other]
            halves.append(str(include))
        tried.append(str(folder))
    if halves:
        raise UnavailableError(
            "pleat: CUDA's header crt/host_config.h is missing, which those in %s include: pip install "
            "nvidia-cuda-crt (for a torch of CUDA 12: nvidia-cuda-nvcc-cu12), or install CUDA's development "
            "files, or set CUDA_HOME" % ", ".join(halves)
        )
    raise UnavailableError(
        "pleat: CUDA's header cuda_runtime_api.h is missing: install CUDA's development files (or the wheels "
        "nvidia-cuda-runtime and nvidia-cuda-crt), or set CUDA_HOME; looked in " + ", ".join(tried)
    )


def library():
    """libpleat's path."""
    return part("PLEAT_LIBRARY").resolve()


def headers():
    """The folder that has Pleat's."""
    return part("PLEAT_INCLUDE").parents[1]


def part(variable):
    found = _parts.place(variable)
    if found is None:
        raise UnavailableError("pleat: " + _parts.missing(variable))
    return found


def options(torch_folder, abi, version):
    """The compiler's options that decide what the shim is. `abi` is torch's _GLIBCXX_USE_CXX11_ABI,
    `version` (2, 11)."""
    return [
        "-std=c++20" if version >= (2, 10) else "-std=c++17",
        "-O2",
        "-fPIC",
        "-fvisibility=hidden",
        "-D_GLIBCXX_USE_CXX11_ABI=%d" % abi,
        *("-DPLEAT_HAS_" + name for name in features(pathlib.Path(torch_folder, "include"))),
        "-I%s" % headers(),
    ]


def libraries(torch_folder):
    """The options that make it a shared object beside torch's and libpleat."""
    folder = pathlib.Path(torch_folder, "lib")
    pleat = library()
    return [
        "-shared",
        "-Wl,--no-as-needed",
        "-L%s" % folder,
        "-lc10",
        "-lc10_cuda",
        "-ltorch_cpu",
        "-ltorch_cuda",
        "-ltorch_python",  # which has the pluggable allocator in 2.4
        # torch's C++ library must be the shim's too: a compiler that links a second one into every
        # shared object (toolsets that are newer than the system do) breaks locales and streams.
        "-nodefaultlibs",
        "-l:libstdc++.so.6",
        "-lm",
        "-lgcc_s",
        "-lc",
        str(pleat),
        "-Wl,-rpath,%s" % folder,
        "-Wl,-rpath,%s" % pleat.parent,
    ]


def command(torch_folder, abi, version, output, object_only=False):
    """The compiler's command line; arguments as above."""
    include = pathlib.Path(torch_folder, "include")
    line = [*compiler(), *options(torch_folder, abi, version)]
    for folder in (include, include / "torch/csrc/api/include", *cuda_includes()):
        line += ["-isystem", str(folder)]
    line += [str(PACKAGE / "shim.cpp"), "-o", str(output)]
    return line + (["-c"] if object_only else libraries(torch_folder))


def compile_with(line, run=subprocess.run):
    """Runs the compiler; UnavailableError with its first errors."""
    try:
        done = run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as problem:
        raise UnavailableError("pleat: the compiler %s cannot be run: %s" % (line[0], problem.strerror)) from None
    if done.returncode == 0:
        return
    # The linker's last line has "error" in it, what is wrong is said before that.
    told = ("error", "cannot", "failed", "undefined reference")
    errors = [text for text in done.stdout.splitlines() if any(part in text for part in told)]
    raise UnavailableError(
        "pleat: the shim does not compile against the installed torch:\n  %s\nThe command was:\n  %s"
        % ("\n  ".join(errors[:8] or done.stdout.splitlines()[-8:]), " ".join(line))
    )


def cache_folder():
    """Where shims are kept: by the rules of plan/file/plan_cache.c, by which a path that is not absolute is none, and in a
    container without a user's name. UnavailableError where nothing says it."""
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if os.path.isabs(cache):
        return pathlib.Path(cache, "pleat", "torch")
    if os.path.isabs(home):
        return pathlib.Path(home, ".cache", "pleat", "torch")
    raise UnavailableError("pleat: there is no folder to keep the shim in: neither XDG_CACHE_HOME nor HOME names one")


def fingerprint(torch, given):
    """Changes with anything that decides what the shared object must be: torch, its headers, Pleat's
    library and its headers, the sources, the options `given` and the system's C library."""
    hashed = hashlib.sha256()
    about = (torch.__version__, torch.version.git_version, torch.version.cuda, *platform.libc_ver())
    for text in (*about, *given):
        hashed.update(str(text).encode() + b"\0")
    ours = [PACKAGE / name for name in SOURCES] + sorted(headers().glob("pleat/*.h"))
    for path in their_headers(pathlib.Path(torch.__file__).parent / "include") + ours:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]


def their_headers(include):
    """Those of torch's that declare the classes which the shim derives from, and what these hold."""
    found = [path for folder in ("c10/core", "c10/cuda", "c10/util") for path in include.glob(folder + "/*.h")]
    return sorted(found + [include / PLUGGABLE])


def wheels_name(include, version, abi):
    """The file that a wheel has for a torch with these headers; arguments as of options()."""
    hashed = hashlib.sha256()
    for path in their_headers(pathlib.Path(include)):
        hashed.update(path.relative_to(include).as_posix().encode() + b"\0" + path.read_bytes())
    return "shim-%d.%d-abi%d-%s.so" % (*version, abi, hashed.hexdigest()[:16])


def brought(torch):
    """The shim that this installation of Pleat has for the installed torch, or None."""
    if not SHIMS.is_dir() or "PLEAT_LIBRARY" in os.environ or "PLEAT_INCLUDE" in os.environ:
        return None  # It is linked with the package's own library.
    try:
        name = wheels_name(pathlib.Path(torch.__file__).parent / "include", numbers(torch.__version__), torch._C._GLIBCXX_USE_CXX11_ABI)
    except OSError:
        return None  # There are no headers to tell by.
    return SHIMS / name if (SHIMS / name).is_file() else None


def numbers(version):
    """(2, 4) of "2.4.1"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def check(torch):
    """UnavailableError where no shim can be built against this torch."""
    if torch.version.cuda is None:
        raise UnavailableError(
            "pleat: this torch (%s) is built without CUDA, and Pleat serves CUDA tensors: install a "
            "torch with CUDA, or run without pleat.enable()" % torch.__version__
        )
    if numbers(torch.__version__) < OLDEST:
        raise UnavailableError("pleat: torch %s is too old: %d.%d or later is needed" % (torch.__version__, *OLDEST))


def no_driver(torch):
    """Why this process has no GPU; None: it may have one. torch itself, which may find a driver elsewhere, is asked
    only where none is found: it may initialize the driver, and no child that is forked after that could use a GPU."""
    driver = os.environ.get("PLEAT_CUDA_LIBRARY") or "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError:
        return None if torch.cuda.device_count() else "there is no GPU (its driver, %s, is not here)" % driver
    return None


def check_driver(torch):
    """UnavailableError where there is no GPU to serve."""
    reason = no_driver(torch)
    if reason:
        raise UnavailableError("pleat: %s: run without pleat.enable(), or by `pleat run`, which says so and goes on"
                               % reason)


def build(torch):
    """The shared object's path, built where it is not in the cache yet. pre: check() has passed."""
    folder = cache_folder()
    made_of = pathlib.Path(torch.__file__).parent, torch._C._GLIBCXX_USE_CXX11_ABI, numbers(torch.__version__)
    made = fingerprint(torch, options(*made_of) + libraries(made_of[0]))
    target = folder / ("shim-%s-%s-%s.so" % (torch.__version__, platform.machine(), made))
    if kept(target):
        note_use(target)
        return target
    # One process builds, the others of a job wait for it.
    with locked(folder):
        remove_unused(folder)
        if not kept(target):
            if os.environ.get("PLEAT_RUN") != "quiet":
                _stderr.say("pleat: compiling the shim for torch %s, which takes some twenty seconds, once: it is kept in %s"
                            % (torch.__version__, folder))
            with tempfile.TemporaryDirectory(prefix=target.name, dir=folder) as making:
                partial = os.path.join(making, target.name)
                compile_with(command(*made_of, partial))
                os.chmod(partial, os.stat(partial).st_mode & ~OTHERS_WRITE)
                os.replace(partial, target)
    return target


def note_use(target):
    """A shim's time is when it was loaded last, to the day: of many processes only one writes it."""
    with contextlib.suppress(OSError):
        if time.time() - target.stat().st_mtime > 86400:
            os.utime(target)


def remove_unused(folder):
    """Shims, and the folders of processes that were killed while they compiled one."""
    for old in folder.glob("shim-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                shutil.rmtree(old) if old.is_dir() else old.unlink()


def ours_alone(status):
    """Whether nobody but this user and root can have made a file what it is."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & OTHERS_WRITE


def kept(target):
    """Whether the shim is there and may be loaded; one that others could write is none, and takes another's place.
    UnavailableError where they can write its folder: they could put one there at any time."""
    try:
        status, folder = os.lstat(target), os.stat(target.parent)
    except OSError:
        return False
    if not ours_alone(folder):
        refuse_folder(target.parent)
    return stat.S_ISREG(status.st_mode) and ours_alone(status)


def refuse_folder(folder):
    raise UnavailableError(
        "pleat: the shim is kept in %s, which is another user's or can be written by others, so that what is loaded "
        "from there could be theirs: chmod go-w %s where it is yours, or name another folder in XDG_CACHE_HOME"
        % (folder, folder)
    )


@contextlib.contextmanager
def locked(folder):
    """Holds the folder, which is made, for one process; where the file system has no locks several may build the same
    at once, each in a place of its own. UnavailableError where it cannot be written, or what is done inside cannot."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not ours_alone(os.stat(folder)):
            refuse_folder(folder)
        with open(folder / "lock", "w") as lock:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as problem:
        raise UnavailableError(
            "pleat: the shim is kept in %s, which cannot be written: %s; name another folder in "
            "XDG_CACHE_HOME" % (folder, problem.strerror)
        ) from None


def load(torch):
    """The shim, with its functions' types declared."""
    shim = opened(brought(torch) or build(torch))
    shim.pleat_torch_remedy.restype = None
    shim.pleat_torch_remedy.argtypes = [ctypes.c_char_p]
    shim.pleat_torch_register_all.restype = None
    shim.pleat_torch_register_all.argtypes = [ctypes.c_int]
    shim.pleat_torch_communication.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    shim.pleat_torch_make_sendable.argtypes = [ctypes.c_void_p]
    return shim


def opened(path):
    """A shim or what stands for one; UnavailableError."""
    try:
        shim = ctypes.CDLL(str(path))
    except OSError as problem:
        raise UnavailableError(
            "pleat: the shim %s cannot be loaded: %s; remove it to have it compiled again, or name another "
            "folder in XDG_CACHE_HOME" % (path, problem)
        ) from None
    shim.pleat_torch_trim.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
    shim.pleat_torch_pause.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
    shim.pleat_torch_resume.argtypes = [ctypes.c_int, ctypes.c_char_p]
    shim.pleat_torch_tag.argtypes = [ctypes.c_char_p]
    shim.pleat_torch_limits.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p]
    shim.pleat_torch_failure.restype = ctypes.c_char_p
    shim.pleat_torch_end_logs.restype = None
    shim.pleat_torch_keep_plans.restype = None
    shim.pleat_torch_counters.restype = ctypes.c_char_p
    shim.pleat_torch_taken.restype = ctypes.c_uint64
    shim.pleat_torch_taken.argtypes = [ctypes.c_int]
    text = ctypes.c_char_p
    shim.pleat_torch_enable.argtypes = [text, text, text, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64]
    shim.pleat_torch_recorded.argtypes = [ctypes.c_int]
    shim.pleat_torch_recorded_enough.argtypes = [ctypes.c_int]
    shim.pleat_torch_save.argtypes = [ctypes.c_int, text, text]
    shim.pleat_torch_fingerprint.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    shim.pleat_torch_plan.argtypes = [text]
    shim.pleat_torch_budget.argtypes = [ctypes.c_uint64]
    shim.pleat_torch_mark.argtypes = [ctypes.c_int]
    shim.pleat_torch_phase.argtypes = [text]
    shim.pleat_torch_max_microbatch.argtypes = [
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_uint64),
    ]
    shim.pleat_torch_canary.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    shim.pleat_torch_stats.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.POINTER(ctypes.c_int),
    ]
    return shim
