/*
 * libtorch.cpp: a C++ program that trains with libtorch, without Python, and says who serves its
 * CUDA memory. It knows nothing of Pleat unless it is built with -DWITH_PLEAT, which is the one
 * call:
 *
 *     LD_PRELOAD=./libpleat_torch.so PLEAT=1 ./libtorch
 *
 * Built with g++ -std=c++20 -o libtorch libtorch.cpp -I DIR/include
 * -I DIR/include/torch/csrc/api/include -I CUDA/include -L DIR/lib -Wl,--no-as-needed -ltorch
 * -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda -Wl,-rpath,DIR/lib. Beside a Python's torch CUDA is its
 * site-packages/nvidia/cu13. With -DWITH_PLEAT also -I PREFIX/include -L. -lpleat_torch.
 */
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>

#include <cstdio>
#ifdef WITH_PLEAT
#include <pleat/torch.h>
#endif

int main()
{
#ifdef WITH_PLEAT
    if (pleat_torch_enable("pleat", "", "", 0, 0, 0) != 0) {
        std::fprintf(stderr, "%s\n", pleat_torch_failure());
        return 1;
    }
#endif
    std::printf("CUDA memory is served by %s\n",
                c10::cuda::CUDACachingAllocator::get()->name().c_str());
    torch::manual_seed(1);
    torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
    torch::nn::Sequential model(torch::nn::Linear(512, 2048), torch::nn::ReLU(),
                                torch::nn::Linear(2048, 512));
    model->to(device);
    torch::optim::AdamW optimizer(model->parameters(), 1e-3);
    torch::Tensor input = torch::randn({256, 512}).to(device);
    for (int step = 0; step < 20; step++) {
        torch::Tensor loss = (model->forward(input) - input).square().mean();
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        if (step % 19 == 0)
            std::printf("step %d: loss %.4f\n", step, loss.item<double>());
    }
    return 0;
}
