/*
 * ipc.h: CUDA tensors between processes. torch asks for a handle of the memory in one process
 * (`Sender`), carries it over, and asks for the memory of a handle in the other (`Receiver`).
 *
 * A handle names a socket of the sending process and a number. The receiving process connects, and
 * gets a descriptor of each piece of physical memory behind the allocation, which it maps one
 * behind the other. Descriptors go over the socket because the other way, taking them from the
 * sender by pidfd_getfd, is forbidden in most containers. Only processes of the same user are
 * answered. torch keeps the tensor alive in the sender until all receivers are done.
 *
 * THREADS  Any. The sender answers from a thread of its own, which the first sharing starts.
 */
#ifndef PLEAT_TORCH_IPC_H
#define PLEAT_TORCH_IPC_H

#include "device.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <utility>

namespace pleat_torch
{

/* A handle's text. */
struct SharedMemory {
    std::string name; /* of the sender's socket */
    uint64_t number;

    static std::optional<SharedMemory> parse(const std::string &handle)
    {
        char name[64];
        unsigned long long number;
        if (std::sscanf(handle.c_str(), "pleat1 %63s %llu", name, &number) != 2)
            return std::nullopt;
        return SharedMemory{name, number};
    }

    std::string text() const
    {
        return "pleat1 " + name + " " + std::to_string(number);
    }
};

/* What goes over the socket: the receiver's question is a number, the answer's head is Head, and
 * each piece is its bytes with a descriptor beside them. */
namespace wire
{

struct Head {
    uint32_t pieces; /* 0: it cannot be had, `text` says why */
    uint64_t bytes;
    char text[160];
};

constexpr int PATIENCE_S = 20;

/* The result of a system call that fails with -1. One that a signal ends is made again. */
template <typename Call> auto again(Call &&call)
{
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds(PATIENCE_S);
    auto result = call();
    while (result < 0 && errno == EINTR && std::chrono::steady_clock::now() < until)
        result = call();
    return result;
}

class Socket
{
  public:
    explicit Socket(int descriptor) : descriptor_(descriptor)
    {
        timeval patience = {PATIENCE_S, 0};
        (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        (void)setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    }

    ~Socket()
    {
        close(descriptor_);
    }

    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;

    int get() const
    {
        return descriptor_;
    }

    template <typename Plain> bool send(const Plain &plain) const
    {
        return again([&] { return ::send(descriptor_, &plain, sizeof plain, MSG_NOSIGNAL); }) ==
               sizeof plain;
    }

    template <typename Plain> bool receive(Plain *plain) const
    {
        return again([&] { return recv(descriptor_, plain, sizeof *plain, 0); }) == sizeof *plain;
    }

    bool send_piece(uint64_t bytes, int descriptor) const
    {
        Message message(&bytes);
        cmsghdr *head = message.begin();
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof descriptor);
        std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
        return again([&] { return sendmsg(descriptor_, &message.header, MSG_NOSIGNAL); }) ==
               sizeof bytes;
    }

    /* The descriptor is the caller's; -1: none came. */
    int receive_piece(uint64_t *bytes) const
    {
        Message message(bytes);
        int descriptor = -1;
        if (again([&] { return recvmsg(descriptor_, &message.header, MSG_CMSG_CLOEXEC); }) !=
            sizeof *bytes)
            return -1;
        cmsghdr *head = CMSG_FIRSTHDR(&message.header);
        if (head != nullptr && head->cmsg_type == SCM_RIGHTS &&
            head->cmsg_len == CMSG_LEN(sizeof descriptor))
            std::memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
        return descriptor;
    }

  private:
    struct Message {
        explicit Message(uint64_t *bytes) : part{bytes, sizeof *bytes}
        {
            header.msg_iov = &part;
            header.msg_iovlen = 1;
            header.msg_control = room;
            header.msg_controllen = sizeof room;
        }

        cmsghdr *begin()
        {
            return CMSG_FIRSTHDR(&header);
        }

        alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
        iovec part;
        msghdr header = {};
    };

    int descriptor_;
};

/* A socket whose name is no file: it goes with its process. */
inline socklen_t address_of(const std::string &name, sockaddr_un *address)
{
    *address = {};
    address->sun_family = AF_UNIX;
    size_t length = std::min(name.size(), sizeof address->sun_path - 1);
    std::memcpy(address->sun_path + 1, name.data(), length);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

} // namespace wire

class Sender
{
  public:
    /* The offset of an address in what the other process will map, and the handle of that. */
    std::pair<ptrdiff_t, std::string> share(pleat_runtime *runtime, pleat_va address)
    {
        pleat_share share;
        pleat_block block;
        if (pleat_share_of(runtime, address, &share) != PLEAT_OK ||
            pleat_block_of(runtime, address, &block) != PLEAT_OK)
            TORCH_CHECK(false, "pleat: this CUDA tensor cannot be sent to another process: ",
                        pleat_last_error()->text, "; copy it to the host");
        uint64_t number;
        {
            std::lock_guard<std::mutex> guard(lock_);
            if (name_.empty())
                listen();
            number = number_of(runtime, block.address);
        }
        auto offset = static_cast<ptrdiff_t>(share.offset + (address - block.address));
        return {offset, SharedMemory{name_, number}.text()};
    }

    /* An allocation is about to be freed: what comes to lie there has another handle. */
    void forget(pleat_va address)
    {
        if (__builtin_expect(!shares_.load(std::memory_order_relaxed), 1))
            return;
        std::lock_guard<std::mutex> guard(lock_);
        numbers_.erase(address);
    }

  private:
    struct Shared {
        pleat_runtime *runtime;
        pleat_va address;
    };

    /* Tensors on their way at the same time; who asks for an older one is told so. */
    static constexpr size_t MOST = 1 << 20;

    /* The same each time that it is sent: torch's receivers then have it once. pre: lock_ is held.
     */
    uint64_t number_of(pleat_runtime *runtime, pleat_va address)
    {
        auto known = numbers_.find(address);
        if (known != numbers_.end() && known->second >= first_)
            return known->second;
        uint64_t number = first_ + shared_.size();
        shared_.push_back({runtime, address});
        if (shared_.size() > MOST) {
            shared_.pop_front();
            first_++;
        }
        numbers_[address] = number;
        shares_.store(true, std::memory_order_relaxed);
        return number;
    }

    void listen()
    {
        std::random_device random;
        char name[64];
        std::snprintf(name, sizeof name, "pleat-%d-%08x%08x%08x", static_cast<int>(getpid()),
                      random(), random(), random());
        sockaddr_un address;
        socklen_t length = wire::address_of(name, &address);
        int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (descriptor < 0 ||
            bind(descriptor, reinterpret_cast<sockaddr *>(&address), length) != 0 ||
            ::listen(descriptor, 64) != 0) {
            int error = errno;
            if (descriptor >= 0)
                close(descriptor);
            TORCH_CHECK(false, "pleat: no socket to send CUDA tensors: ", std::strerror(error));
        }
        try {
            std::thread([this, descriptor] { serve(descriptor); }).detach();
        } catch (...) {
            close(descriptor);
            throw;
        }
        name_ = name; /* once somebody answers there */
    }

    void serve(int listening)
    {
        for (;;) {
            int descriptor = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
            if (descriptor < 0 && (errno == EINTR || errno == ECONNABORTED))
                continue;
            if (descriptor < 0 && (errno == EMFILE || errno == ENFILE)) {
                /* The program has all descriptors it may have: who asks waits. */
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                continue;
            }
            if (descriptor < 0)
                return;
            wire::Socket connection(descriptor);
            answer(connection);
        }
    }

    static bool same_user(int descriptor)
    {
        ucred peer;
        socklen_t length = sizeof peer;
        return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
               (peer.uid == geteuid() || peer.uid == 0);
    }

    void answer(const wire::Socket &connection)
    {
        uint64_t number;
        wire::Head head = {};
        Shared shared = {};
        pleat_share share = {};
        if (!same_user(connection.get()) || !connection.receive(&number))
            return;
        {
            std::lock_guard<std::mutex> guard(lock_);
            if (number >= first_ && number - first_ < shared_.size())
                shared = shared_[number - first_];
        }
        if (shared.runtime == nullptr)
            std::snprintf(head.text, sizeof head.text, "it was sent too long ago");
        else if (pleat_share_of(shared.runtime, shared.address, &share) != PLEAT_OK)
            std::snprintf(head.text, sizeof head.text, "%s", pleat_last_error()->text);
        head.pieces = share.pieces;
        head.bytes = share.bytes;
        if (!connection.send(head))
            return;
        for (uint32_t i = 0; i < share.pieces; i++) {
            int descriptor = -1;
            uint64_t bytes = 0;
            if (pleat_share_piece(shared.runtime, shared.address, i, &descriptor, &bytes) !=
                PLEAT_OK)
                return;
            bool sent = connection.send_piece(bytes, descriptor);
            close(descriptor);
            if (!sent)
                return;
        }
    }

    std::mutex lock_;
    std::string name_; /* of the socket; empty until something is shared */
    uint64_t first_ = 0;
    std::deque<Shared> shared_; /* number first_ and on */
    /* Of allocations that were not freed since, of all devices: no two windows overlap. */
    std::unordered_map<pleat_va, uint64_t> numbers_;
    std::atomic<bool> shares_{false};
};

class Receiver
{
  public:
    std::shared_ptr<void> open(pleat_runtime *runtime, const std::string &handle,
                               const SharedMemory &shared)
    {
        if (std::shared_ptr<void> known = find(handle))
            return known;
        /* Without the lock: the sending process may take its time, or not answer. */
        pleat_va base = receive(runtime, shared);
        DeviceIndex device = c10::cuda::current_device();
        std::shared_ptr<void> memory(
            reinterpret_cast<void *>(base),
            [this, runtime, device, handle, opened = getpid()](void *address) {
                if (getpid() != opened)
                    return; /* a forked child's, which has not mapped it */
                finish(device);
                (void)pleat_import_end(runtime, reinterpret_cast<pleat_va>(address));
                std::lock_guard<std::mutex> again(lock_);
                auto found = open_.find(handle);
                if (found != open_.end() && found->second.expired())
                    open_.erase(found);
            });
        /* Freed behind the lock where another thread was faster. */
        std::lock_guard<std::mutex> guard(lock_);
        std::weak_ptr<void> &entry = open_[handle];
        if (std::shared_ptr<void> known = entry.lock())
            return known;
        entry = memory;
        return memory;
    }

  private:
    std::shared_ptr<void> find(const std::string &handle)
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto found = open_.find(handle);
        return found != open_.end() ? found->second.lock() : nullptr;
    }

    /* Work that uses the memory may be left: torch lets go of it first, and waits then. Where the
     * device answers no more, none is. */
    static void finish(DeviceIndex device)
    {
        try {
            c10::cuda::CUDAGuard guard(device);
            Relaxed relaxed;
            if (cudaDeviceSynchronize() != cudaSuccess)
                (void)cudaGetLastError();
        } catch (const std::exception &) {
        }
    }

    [[noreturn]] static void refuse(const std::string &why)
    {
        TORCH_CHECK(false, "pleat: a CUDA tensor from another process cannot be had: ", why);
    }

    static pleat_va receive(pleat_runtime *runtime, const SharedMemory &shared)
    {
        sockaddr_un address;
        socklen_t length = wire::address_of(shared.name, &address);
        int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (descriptor < 0)
            refuse(std::strerror(errno));
        wire::Socket connection(descriptor);
        if (wire::again([&] {
                return connect(descriptor, reinterpret_cast<sockaddr *>(&address), length);
            }) != 0)
            refuse(std::string("the sending process is gone (") + std::strerror(errno) + ")");
        wire::Head head;
        if (!connection.send(shared.number) || !connection.receive(&head))
            refuse("the sending process does not answer; it must belong to the same user");
        head.text[sizeof head.text - 1] = '\0';
        if (head.pieces == 0)
            refuse(head.text);
        pleat_va base;
        if (pleat_import_begin(runtime, head.bytes, &base) != PLEAT_OK)
            refuse(pleat_last_error()->text);
        for (uint32_t i = 0; i < head.pieces; i++) {
            uint64_t bytes = 0;
            int piece = connection.receive_piece(&bytes);
            bool mapped = piece >= 0 && pleat_import_piece(runtime, base, piece, bytes) == PLEAT_OK;
            std::string why = piece < 0 ? "a piece of it did not come" : pleat_last_error()->text;
            if (piece >= 0)
                close(piece);
            if (!mapped) {
                (void)pleat_import_end(runtime, base);
                refuse(why);
            }
        }
        return base;
    }

    std::mutex lock_;
    std::unordered_map<std::string, std::weak_ptr<void>> open_;
};

} // namespace pleat_torch

#endif
