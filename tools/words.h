/*
 * words.h: the words that the commands and the page use, each explained in a line.
 */
#ifndef PLEAT_TOOLS_WORDS_H
#define PLEAT_TOOLS_WORDS_H

#include <stdio.h>

/* X(word, line) */
#define WORDS(X)                                                                                   \
    X("live",                                                                                      \
      "bytes of tensors that exist; max-live is the most at once: no allocator needs less")        \
    X("physical", "memory that the allocator has taken from the device")                           \
    X("virtual", "address space with memory behind it; beyond physical where memory is mapped at " \
                 "several places")                                                                 \
    X("idle", "physical memory in which no tensor lies")                                           \
    X("efficiency", "live / physical at their peaks; what is missing to 100 % is fragmentation")   \
    X("fragmentation", "idle memory that cannot serve a request, since it lies in pieces")         \
    X("request", "one allocation and its free")                                                    \
    X("iteration", "what is allocated between two marks of the program, an optimizer's step, say") \
    X("phase", "a part of an iteration that the program named: forward, backward, opt")            \
    X("mark", "where an iteration begins: what the program, its optimizer or a recording says")    \
    X("label", "what a recording says of an event, such as iter=3;phase=F")                        \
    X("event", "an allocation or a free: the recording's unit of time")                            \
    X("entry",                                                                                     \
      "one item of a recording: an allocation, a free asked for or completed, a segment, a mark")  \
    X("segment", "memory that PyTorch's allocator took from the driver in one piece")              \
    X("steady", "from the third whole iteration on, when everything has been seen")                \
    X("transient", "allocated and freed within one phase")                                         \
    X("scoped", "freed in a later phase of the same iteration: what forward keeps for backward")   \
    X("within", "of one iteration, as far as a recording tells that names no phases")              \
    X("crossing", "freed in the next iteration")                                                   \
    X("persistent", "there across iterations: weights, optimizer states")                          \
    X("dynamic", "of another size, or missing, from iteration to iteration; or alive until the "   \
                 "next one has its like")                                                          \
    X("slot", "the place that a plan, or the iteration before, has for a request")                 \
    X("stitched", "served by a view")                                                              \
    X("cached", "served from memory that the allocator keeps, in no slot, lane or view")           \
    X("plan", "a file that says where each request of the repeating iteration lies")               \
    X("planned", "a request that got the place that a plan, or the iteration before, had for it")  \
    X("x", "what a job's sizes follow: its microbatch or its length")                              \
    X("recipe", "the part of a plan that says how each size follows x")                            \
    X("layout",                                                                                    \
      "where all of an iteration's requests lie: without views (contiguous) or with (folded)")     \
    X("remaps", "maps of chunks that a layout has and the plan has not")                           \
    X("chunk", "2 MiB of physical memory, the least that the driver maps")                         \
    X("handle", "the driver's name for one or several chunks made at once")                        \
    X("alias", "a second address for memory that is mapped already")                               \
    X("view", "addresses side by side over chunks from anywhere")                                  \
    X("folded",                                                                                    \
      "put in a view over chunks that are idle meanwhile, in the place of further memory")         \
    X("lane", "room that a plan keeps for dynamic requests")                                       \
    X("stuck", "what a plan takes beyond max-live because no idle chunks were found for it")       \
    X("calls", "of the driver (map, unmap, create ...) that an iteration waits for")               \
    X("metadata", "host memory in which the allocator keeps its books")                            \
    X("aside", "calls of Pleat's own threads, for which the job does not wait")                    \
    X("rest", "between two turns, when a trainer has given back what it can (bench turns)")        \
    X("canary", "a pattern written into tensors and verified: it finds memory given out twice")    \
    X("native", "PyTorch's own allocator, as it is by default")                                    \
    X("expandable", "PyTorch's allocator with expandable_segments:True")                           \
    X("gmlake", "the allocator of the paper GMLake: stitches idle blocks")                         \
    X("stweaver", "the allocator of the paper STWeaver: follows a plan, without views")

/* A word's line, or NULL. */
const char *words_line(const char *word);
/* "WORD: its line" for each of a list, "view,alias", below where they are shown. */
void words_explain(FILE *out, const char *list);
/* All of them, for a terminal. */
void words_print(FILE *out);

#endif
